"""Searches pick on validation, test once, resume, and say what they cost."""

import json
import math

import numpy as np
import pytest

from tff_agg import tuning
from tff_agg.tuning import Candidate, Journal, Trial


def test_the_papers_grids():
    assert tuning.KS[:5] == (2, 3, 5, 10, 20) and tuning.KS[-1] == 200
    assert len(tuning.KS) == 23
    assert tuning.TRAINING_BETAS[0] == 0.5 and len(tuning.TRAINING_BETAS) == 10
    assert tuning.INFERENCE_BETAS[0] == 0.85 and tuning.INFERENCE_BETAS[-1] == 0.9999
    assert tuning.cifar10_starts(3068)[-1] == 3000
    assert tuning.cifar10_starts(300) == (100, 200)
    assert tuning.CIFAR100_STARTS == (50, 100, 150, 200, 250)


def test_pick_takes_the_first_of_the_best_and_never_nan():
    a, b, c = Candidate("a"), Candidate("b"), Candidate("c")
    assert pick_of((a, 0.1), (b, 0.3), (c, 0.3)) == b
    assert pick_of((a, math.nan), (b, 0.0)) == b
    assert pick_of((a, 0.1), (b, math.nan)) == a
    for trials in ([], [Trial(a, math.nan)]):
        with pytest.raises(ValueError, match="trials"):
            tuning.pick(trials)


def pick_of(*pairs):
    return tuning.pick([Trial(*pair) for pair in pairs]).candidate


_ACCURACY = {
    Candidate("UTA_inf", 2): 0.20,
    Candidate("UTA_inf", 3): 0.24,
    Candidate("UTA_inf", 5): 0.22,
    Candidate("OMV", 2): 0.19,
    Candidate("OMV", 3): 0.18,
}


class Bench:
    """Scores candidates and counts how often it is asked."""

    def __init__(self):
        self.validated, self.tested = [], []

    def validate(self, candidates):
        for candidate in candidates:
            self.validated.append(candidate)
            yield candidate, _ACCURACY[candidate]

    def run(self, candidate):
        self.validated.append(candidate)
        return _ACCURACY[candidate]

    def test(self, candidate):
        self.tested.append(candidate)
        return _ACCURACY[candidate] - 0.01


def test_inference_search_picks_for_each_method_and_tests_once(tmp_path):
    bench = Bench()
    path = tmp_path / "tuning" / "journal.jsonl"
    grid = list(_ACCURACY)
    choices = tuning.tune_inference(grid, bench.validate, bench.test, Journal(path))
    assert list(choices) == ["UTA_inf", "OMV"]
    assert choices["UTA_inf"].best == Candidate("UTA_inf", 3)
    assert choices["UTA_inf"].test == pytest.approx(0.23)
    assert choices["UTA_inf"].validation == 0.24
    assert len(choices["UTA_inf"].trials) == 3
    assert bench.validated == grid
    assert bench.tested == [Candidate("UTA_inf", 3), Candidate("OMV", 2)]
    # Again: everything is known already.
    again = tuning.tune_inference(grid, bench.validate, bench.test, Journal(path))
    assert again == choices
    assert len(bench.validated) == 5 and len(bench.tested) == 2


def test_a_larger_grid_only_runs_what_is_new(tmp_path):
    bench, path = Bench(), tmp_path / "journal.jsonl"
    grid = list(_ACCURACY)
    tuning.tune_inference(grid[:1], bench.validate, bench.test, Journal(path))
    tuning.tune_inference(grid[:3], bench.validate, bench.test, Journal(path))
    assert bench.validated == grid[:3]
    assert bench.tested == [grid[0], grid[1]]
    # Every look at the test data is on record.
    assert len(Journal(path).lines("test")) == 2


def test_an_interrupted_search_goes_on_where_it_stopped(tmp_path):
    bench, path = Bench(), tmp_path / "journal.jsonl"
    grid = [Candidate("UTA_inf", k) for k in (2, 3, 5)]

    def dying(candidate):
        if candidate.parameter == 5:
            raise KeyboardInterrupt
        return bench.run(candidate)

    with pytest.raises(KeyboardInterrupt):
        tuning.tune_training(grid, dying, bench.test, Journal(path))
    assert bench.tested == []
    seen = []
    choice = tuning.tune_training(
        grid, bench.run, bench.test, Journal(path), on_trial=lambda *a: seen.append(a)
    )
    assert bench.validated == grid  # Each ran once, over both attempts.
    assert bench.tested == [Candidate("UTA_inf", 3)]
    assert choice.best.parameter == 3
    assert seen == [
        (1, 3, grid[0], 0.20),
        (2, 3, grid[1], 0.24),
        (3, 3, grid[2], 0.22),
    ]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["settings", *["trial"] * 3, "test"]


def test_a_failed_trial_is_recorded_passed_over_and_tried_again(tmp_path):
    bench, path = Bench(), tmp_path / "journal.jsonl"
    grid = [Candidate("UTA_inf", k) for k in (2, 3)]

    def flaky(candidate):
        if candidate.parameter == 3:
            raise OSError("out of memory")
        return bench.run(candidate)

    choice = tuning.tune_training(grid, flaky, bench.test, Journal(path))
    assert choice.best.parameter == 2
    assert choice.failed == ((grid[1], "OSError: out of memory"),)
    assert Journal(path).runs_looked_at() == 2
    choice = tuning.tune_training(grid, bench.run, bench.test, Journal(path))
    assert choice.best.parameter == 3 and choice.failed == ()
    assert Journal(path).runs_looked_at() == 3


def test_a_search_in_which_everything_fails_says_why(tmp_path):
    def broken(candidate):
        raise ValueError("no data")

    with pytest.raises(RuntimeError, match=r"all 1 trials failed.*no data"):
        tuning.tune_training(
            [Candidate("UTA_tr", 2)], broken, broken, Journal(tmp_path / "j")
        )
    for search in (tuning.tune_training, tuning.tune_inference):
        with pytest.raises(ValueError, match="grid"):
            search([], broken, broken, Journal(tmp_path / "j"))


def test_a_journal_of_another_setting_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path, {"split": "heldout", "runs": ["a"]}).record({"kind": "x"})
    Journal(path, {"split": "heldout", "runs": ["a"]})
    with pytest.raises(ValueError, match="split: 'heldout' → 'test'"):
        Journal(path, {"split": "test", "runs": ["a"]})


@pytest.mark.parametrize("rho", [0.001, 0.1, 1.08, 4.31, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_epsilon_is_a_valid_and_tight_conversion(rho, delta):
    epsilon = tuning.zcdp_epsilon(rho, delta)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    # The Gaussian mechanism is ρ-zCDP; its exact δ at ε must not exceed the claim.
    import scipy.stats

    normal, mu = scipy.stats.norm, math.sqrt(2 * rho)
    exact = normal.cdf(mu / 2 - epsilon / mu) - math.exp(
        epsilon + normal.logcdf(-mu / 2 - epsilon / mu)
    )
    assert exact <= delta
    # A grid over α finds nothing better.
    alpha = 1 + np.geomspace(1e-4, 1e4, 20_001)
    grid = alpha * rho + np.log1p(-1 / alpha) - np.log(alpha * delta) / (alpha - 1)
    assert epsilon == pytest.approx(max(0, grid.min()), rel=1e-3, abs=1e-4)


def test_privacy_of_a_search_composes_all_runs():
    one = tuning.tuning_privacy(0.5, 1e-6, runs=1)
    assert one.rho_total == 0.5 and one.epsilon_total == one.epsilon
    assert "stands as it is" in one.paragraph
    many = tuning.tuning_privacy(0.5, 1e-6, runs=8, inference_candidates=52)
    assert many.rho_total == 4.0
    assert many.epsilon_total == tuning.zcdp_epsilon(4.0, 1e-6) > many.epsilon
    assert "8 private runs" in many.paragraph
    assert f"{many.epsilon_total:.2f}" in many.paragraph
    assert "52 ways" in many.paragraph and "no privacy" in many.paragraph
    json.dumps(many.fields())
    exact = tuning.tuning_privacy(0.5, 1e-6, 2, epsilon_of=lambda rho, delta: 7 * rho)
    assert (exact.epsilon, exact.epsilon_total) == (3.5, 7.0)
    assert math.isinf(tuning.tuning_privacy(math.inf, 1e-6, 2).epsilon_total)
    with pytest.raises(ValueError, match="runs"):
        tuning.tuning_privacy(0.5, 1e-6, runs=0)
    for bad in ({"rho": -1.0, "delta": 0.1}, {"rho": 1.0, "delta": 0.0}):
        with pytest.raises(ValueError, match=r"rho|delta"):
            tuning.zcdp_epsilon(**bad)
