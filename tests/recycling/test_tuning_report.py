"""What a search takes from the reports of the runs it looks at."""

import math

import pytest

from tff_agg import noise, privacy
from tff_agg.experiment import tuning_report

VOCABULARY = privacy.Release("vocabulary", 0.5, 4e-7, is_gaussian=True)


@pytest.fixture
def run(tmp_path):
    """Writes the report of a run and returns its folder."""

    def write(name, data="store", shared=None, **changes):
        plan = privacy.Plan(
            clip_norm=1.0,
            cohort_size=10,
            rounds=8,
            mechanism=noise.tree(),
            noise_multiplier=1.0,
            **changes,
        )
        told = {"run": {"data": data}, "shared_users": shared}
        privacy.write_report(tmp_path / name, plan, **told)
        return tmp_path / name

    return write


def costs_of(folders):
    return (
        tuning_report.training_cost(folders, len(folders)),
        tuning_report.inference_cost(folders, 5),
    )


def test_a_known_seed_leaves_nothing_to_compose(run):
    for cost in costs_of([run("a"), run("b", noise_seed_is_known=True)]):
        assert cost.rho == cost.epsilon_total == math.inf
        assert "known noise seed" in cost.paragraph
        assert cost.to_json()["epsilon_total"] is None


def test_shared_users_of_any_run_are_told(run):
    folders = [
        run("a", shared={"heldout": 0, "test": 3}),
        run("b", shared={"heldout": 7, "test": 1}),
    ]
    for cost in costs_of(folders):
        assert "7 are also in the heldout and 3 are also in the test" in cost.paragraph
    for cost in costs_of([*folders, run("c")]):
        assert "was not counted" in cost.paragraph
    apart = run("d", shared={"heldout": 0, "test": 0})
    for cost in costs_of([apart]):
        assert "No user of the training data is in" in cost.paragraph


def test_runs_on_one_store_share_the_delta_of_its_vocabulary(run):
    folders = [run(name, releases=[VOCABULARY]) for name in ("a", "b")]
    for cost in costs_of(folders):
        assert cost.rho == 1.0 and cost.rho_total == 2.0
        expected = privacy.Loss(mu=2.0).epsilon(6e-7)
        assert cost.epsilon_total == pytest.approx(expected)
    other = run("c", data="another store", releases=[VOCABULARY])
    _, cost = costs_of([*folders, other])
    assert cost.epsilon_total == pytest.approx(
        privacy.Loss(mu=6**0.5).epsilon(2e-7), rel=1e-6
    )
