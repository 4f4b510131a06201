"""The studies: the quadratic's figures, error bars, the factor of the last iterate."""

import functools
import json

import numpy as np
import pytest

from benchmarks import error_bars, quadratic, tail_averaging
from tff_agg import averaging


@pytest.fixture(scope="module")
def study_result():
    return quadratic.run(quadratic.Study(resamples=200))


def cell(result, burn_in, separation):
    (found,) = (
        c
        for c in result["cells"]
        if (c["burn_in"], c["separation"]) == (burn_in, separation)
    )
    return found


def test_the_last_iterate_has_variance_one(study_result):
    assert study_result["last_iterate_variance"] == pytest.approx(1.0, abs=1e-12)
    study = quadratic.Study(runs=100_000)
    last = quadratic.simulate(study, np.random.default_rng(0))[:, -1]
    assert last.var() == pytest.approx(1.0, abs=0.02)


def test_simulation_agrees_with_the_exact_figures(study_result):
    deviations = [
        (c["rmse"] - c["exact_rmse"]) / c["rmse_error"] for c in study_result["cells"]
    ]
    assert len(deviations) == 51
    assert np.max(np.abs(deviations)) < 4.5


def test_the_findings_that_are_significant(study_result):
    verdicts = {f["statement"]: f["verdict"] for f in study_result["findings"]}
    assert len(verdicts) == 7
    for statement, verdict in verdicts.items():
        if "32 against 64" in statement or "112 against" in statement:
            assert verdict == "holds"
        if statement.endswith("than 16") or statement.endswith("than 48"):
            assert verdict == "holds"
        if statement.endswith("than 1"):
            assert verdict == "not significant"
    assert cell(study_result, 64, 1)["exact_rmse"] == pytest.approx(0.518, abs=0.001)
    assert cell(study_result, 64, 2)["exact_rmse"] == pytest.approx(0.520, abs=0.001)


def test_two_independent_runs_have_an_rmse_of_at_least_root_two(study_result):
    two = study_result["two_independent_runs"]
    assert two["exact_rmse_without_bias"] == pytest.approx(np.sqrt(2))
    assert abs(two["rmse"] - two["exact_rmse"]) < 4 * two["rmse_error"]


def test_the_quadratic_table_and_picture_are_written(study_result, tmp_path):
    quadratic.draw(study_result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 20_000
    assert "0.518" in quadratic.table(study_result)
    json.dumps(study_result)


def test_descent_is_as_private_as_it_says():
    stddev = tail_averaging.noise_stddev(2.0, steps=50, n=1000, rho=0.3)
    assert tail_averaging.zcdp(2.0, steps=50, n=1000, stddev=stddev) == pytest.approx(
        0.3
    )


def test_the_study_averages_as_the_library_does():
    rng = np.random.default_rng(0)
    iterates = [rng.standard_normal((2, 3)) for _ in range(10)]
    found = tail_averaging.Averages(np.zeros((2, 3)), 10, gamma=3.0)
    for theta in iterates:
        found.add(theta)
    *_, uta = averaging.fold(averaging.uta(5), iterates)
    *_, pda = averaging.fold(averaging.pda(3.0), iterates)
    np.testing.assert_allclose(found.values["uta"], uta)
    np.testing.assert_allclose(found.values["pda"], pda)
    np.testing.assert_array_equal(found.values["last"], iterates[-1])


def test_only_the_last_iterate_grows_with_n(tmp_path):
    study = tail_averaging.Study(
        exponents=(6, 8, 10, 12), repeats=200, worst_case_steps=(32, 128, 512)
    )
    result = tail_averaging.run(study)
    fits = result["per_doubling_of_n"]
    assert fits["last"]["z"] > 6
    # η σ²/4 for each further scale, in units of L‖C‖/(n√ρ) = 4/n.
    assert fits["last"]["slope"] == pytest.approx(
        0.5 * 0.5 / 4 / 4, abs=4 * fits["last"]["error"]
    )
    for name in ("uta", "pda"):
        assert abs(fits[name]["slope"]) < 0.2 * fits["last"]["slope"]
        assert fits[f"last_over_{name}"]["z"] > 6
    worst = result["worst_case"]
    gains = np.diff([row["last"] for row in worst])
    np.testing.assert_allclose(gains, 0.064, rtol=0.05)  # The same for each factor 4.
    for name in ("uta", "pda"):
        assert np.ptp([row[name] for row in worst]) < 0.003
    # In one dimension for all n it stays, and averages get better: no log n.
    fixed = result["per_doubling_of_n_at_fixed_dimension"]
    assert {row["dimension"] for row in result["fixed_dimension"]} == {5}
    assert [row["dimension"] for row in result["private"]] == [5, 7, 9, 11]
    assert abs(fixed["last"]["z"]) < 4
    assert fixed["uta"]["z"] < -10 and fixed["last_over_uta"]["z"] > 6
    tail_averaging.draw(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 20_000
    assert "last/UTA" in tail_averaging.table(result)
    json.dumps(result)


settings = functools.cache(error_bars.settings)


@pytest.mark.parametrize("momentum", [0.0, 0.95])
@pytest.mark.parametrize("name", ["identity", "tree", "blt"])
@pytest.mark.parametrize("forgotten", [(0.0,), (0.01,), error_bars.MIXED])
def test_bars_are_right_with_no_separation_chosen_by_anybody(name, momentum, forgotten):
    """The truth is exact; the run climbs; nothing is told of its noise."""
    (setting,) = (s for s in settings(1000) if (s.name, s.momentum) == (name, momentum))
    bars = error_bars.run(setting, forgotten, 1000, 300)
    assert 0.64 < bars.widened < 1.5
    if momentum:
        assert bars.consecutive < 0.35


def test_the_exact_deviation_is_that_of_the_mechanism():
    (setting,) = (
        s for s in error_bars.settings(50) if (s.name, s.momentum) == ("blt", 0.95)
    )
    # θ_{t+1} = θ_t − v_t, v_t = 0.95 v_{t−1} + 0.05 · 0.1 θ_t + noise, step by step.
    normals = np.random.default_rng(0).standard_normal(50)
    drawn = np.linalg.solve(setting.mechanism.matrix(50), normals)
    theta, velocity, expected = 0.0, 0.0, []
    for one in drawn:
        velocity = 0.95 * velocity + 0.05 * 0.1 * theta + one
        theta -= velocity
        expected.append(theta)
    found = error_bars.iterates_of(setting, 0.1, 50) @ normals
    np.testing.assert_allclose(found, expected, rtol=1e-9)
