"""What a search takes from the reports of the runs it looks at."""

import json
import math

import pytest

from tff_agg import noise, privacy
from tff_agg.experiment.study import cost

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
        cost.of_training(folders, len(folders)),
        cost.of_inference(folders, 5),
    )


def test_a_known_seed_leaves_nothing_to_compose(run):
    for searched in costs_of([run("a"), run("b", noise_seed_is_known=True)]):
        assert searched.rho == searched.epsilon_total == math.inf
        assert "known noise seed" in searched.paragraph
        assert searched.to_json()["epsilon_total"] is None


def test_shared_users_of_any_run_are_told(run):
    folders = [
        run("a", shared={"heldout": 0, "test": 3}),
        run("b", shared={"heldout": 7, "test": 1}),
    ]
    for searched in costs_of(folders):
        assert (
            "7 are also in the heldout and 3 are also in the test" in searched.paragraph
        )
    for searched in costs_of([*folders, run("c")]):
        assert "was not counted" in searched.paragraph
    apart = run("d", shared={"heldout": 0, "test": 0})
    for searched in costs_of([apart]):
        assert "No user of the training data is in" in searched.paragraph


def test_runs_on_one_store_share_the_delta_of_its_vocabulary(run):
    folders = [run(name, releases=[VOCABULARY]) for name in ("a", "b")]
    for searched in costs_of(folders):
        assert searched.rho == pytest.approx(1.0)
        assert searched.rho_total == pytest.approx(2.0)
        expected = privacy.Loss(mu=2.0).epsilon(6e-7)
        assert searched.epsilon_total == pytest.approx(expected)
    other = run("c", data="another store", releases=[VOCABULARY])
    _, searched = costs_of([*folders, other])
    assert searched.epsilon_total == pytest.approx(
        privacy.Loss(mu=6**0.5).epsilon(2e-7), rel=1e-6
    )


def test_a_report_names_the_search_by_a_folder_that_is_there(run, tmp_path):
    folders = [run("a"), run("b")]
    out = tmp_path / "results" / "search"
    with pytest.raises(FileNotFoundError, match=f"out={str(out)!r} is no folder"):
        cost.add_to_reports(folders, out, cost.of_training(folders, 2))
    out.mkdir(parents=True)
    cost.add_to_reports([*folders, tmp_path / "none"], out, None)
    for runs in (2, 3):  # the same search, as it goes on
        cost.add_to_reports(folders, out, cost.of_training(folders, runs))
    for folder in folders:
        report = json.loads((folder / "privacy_report.json").read_text())
        (name,) = report["tuning"]
        assert (folder / name).resolve() == out
        assert report["tuning"][name]["runs"] == 3
