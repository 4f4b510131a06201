"""Searches pick on validation, test once, and resume."""

import json
import math

import pytest

from tff_agg.recycling import tuning
from tff_agg.recycling.grids import Grids
from tff_agg.recycling.metrics import Metric
from tff_agg.recycling.tuning import Candidate, Journal, Trial


def test_the_papers_grids():
    found = Grids()
    assert found.ks[:5] == (2, 3, 5, 10, 20) and found.ks[-1] == 200
    assert len(found.ks) == 23
    assert found.training_betas[0] == 0.5 and len(found.training_betas) == 10
    assert found.inference_betas[0] == 0.85 and found.inference_betas[-1] == 0.9999
    assert found.starts == (0,)


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
    first = tuning.tune_inference(grid[:1], bench.validate, bench.test, Journal(path))
    more = tuning.tune_inference(grid[:3], bench.validate, bench.test, Journal(path))
    assert bench.validated == grid[:3]
    assert bench.tested == [grid[0], grid[1]]
    # Every look at the test data is on record, and told.
    assert len(Journal(path).lines("test")) == 2
    assert (first["UTA_inf"].looks, more["UTA_inf"].looks) == (1, 2)


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


class Flaky(Bench):
    """Fails on some parameters for a number of times."""

    def __init__(self, failures):
        super().__init__()
        self.failures = dict(failures)

    def run(self, candidate):
        if self.failures.get(candidate.parameter, 0):
            self.failures[candidate.parameter] -= 1
            raise OSError("out of memory")
        return super().run(candidate)


def test_a_failed_trial_is_tried_again_before_the_test_data_are_looked_at(tmp_path):
    """It may turn out to be the best: to test before would be to test twice."""
    bench, path = Flaky({3: 1}), tmp_path / "journal.jsonl"
    grid = [Candidate("UTA_inf", k) for k in (2, 3)]
    choice = tuning.tune_training(grid, bench.run, bench.test, Journal(path))
    assert choice.best.parameter == 2 and choice.test is None
    assert choice.failed == ((grid[1], "OSError: out of memory"),)
    assert Journal(path).runs_looked_at() == 2
    assert bench.tested == [] and choice.looks == 0
    choice = tuning.tune_training(grid, bench.run, bench.test, Journal(path))
    assert choice.best.parameter == 3 and choice.failed == ()
    assert choice.test == pytest.approx(0.23) and choice.looks == 1
    assert Journal(path).runs_looked_at() == 3
    assert bench.tested == [grid[1]]


def test_a_search_ends_without_what_fails_twice_and_stays_as_it_ended(tmp_path):
    bench, path = Flaky({3: 2}), tmp_path / "journal.jsonl"
    grid = [Candidate("UTA_inf", k) for k in (2, 3, 5)]
    first = tuning.tune_training(grid, bench.run, bench.test, Journal(path))
    assert first.test is None
    ended = tuning.tune_training(grid, bench.run, bench.test, Journal(path))
    assert ended.best.parameter == 5 and ended.test == pytest.approx(0.21)
    assert ended.failed == ((grid[1], "OSError: out of memory"),)
    # By now the trial that failed would succeed, and be the best: too late.
    before, seen = path.read_bytes(), []
    again = tuning.tune_training(
        grid, bench.run, bench.test, Journal(path), on_trial=lambda *a: seen.append(a)
    )
    assert again == ended and path.read_bytes() == before
    assert [accuracy for *_, accuracy in seen] == [0.20, None, 0.22]
    assert bench.tested == [grid[2]]


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


def test_a_loss_is_tuned_downwards():
    low, high = (
        tuning.Trial(Candidate("UTA_inf", 2), 0.1),
        tuning.Trial(Candidate("UTA_inf", 3), 0.2),
    )
    worst = tuning.Trial(Candidate("UTA_inf", 5), float("nan"))
    loss = Metric("auc_loss", higher_is_better=False)
    assert tuning.pick([worst, high, low], loss) == low
    assert tuning.pick([worst, low, high]) == high


def test_a_journal_of_before_metrics_had_names_goes_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    lines = [
        {"kind": "settings", "settings": {}},
        {"kind": "trial", "candidate": ["UTA_inf", 3, 0], "accuracy": 0.25},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    journal = tuning.Journal(path)
    assert journal.values("trial") == {Candidate("UTA_inf", 3): 0.25}
