"""What a study trains, asks, chooses and tests, with values that are told."""

import csv
import dataclasses
import math

import pytest

from tests.study.tiny_studies import Line, Told, arm, study, use
from tff_agg.experiment.study import search
from tff_agg.experiment.study.declare import (
    BROADCAST,
    TrialsFailedError,
    distinct,
    validated,
)
from tff_agg.experiment.study.search import perform, plan, results


def by_rate(values):
    """Values by learning rate; on test data a tenth of them."""

    def value(config, series, method, split):
        found = values[config.learning_rate]
        found = found if isinstance(found, float) else found[method]
        return found / (10 if split == "test" else 1)

    return value


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def final_looks(train):
    return [
        (config.learning_rate, config.seed, [str(m) for m in question.methods])
        for config, question in train.asked
        if question.split == "test"
    ]


def test_settings_are_chosen_on_validation_data_and_tested_with_other_seeds(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4, 4.0: 0.3}))
    line = Line("row", "last", arm("DP-SGD", 1.0, 2.0, 4.0))
    found = perform(study(line, train=train), tmp_path)
    assert found.chosen[line] == ({"learning_rate": 2.0}, BROADCAST.methods[0], 0.4)
    assert final_looks(train) == [(2.0, 0, ["last"]), (2.0, 1, ["last"])]
    searched = [config.seed for config, q in train.asked if q.split == "heldout"]
    assert searched == [100, 100, 100]
    assert found.values(line) == [0.04, 0.04]
    assert found.seeds == (0, 1)


def test_every_line_chooses_for_what_is_used(tmp_path):
    """The rate that is best for the last model need not be UTA_inf's."""
    scores = {
        0.5: {"last": 0.2, "uta:2": 0.2, "uta:4": 0.3},
        1.0: {"last": 0.3, "uta:2": 0.1, "uta:4": 0.2},
        2.0: {"last": 0.1, "uta:2": 0.5, "uta:4": 0.4},
    }
    train = Told(by_rate(scores))
    own = arm("baseline", *scores)
    lines = Line("row", "broadcast", own), Line("row", "UTA_inf", own, use("uta:2,4"))
    found = perform(study(*lines, train=train), tmp_path)
    chosen = [
        (c.settings["learning_rate"], str(c.method)) for c in found.chosen.values()
    ]
    assert chosen == [(1.0, "last"), (2.0, "uta:2")]
    assert final_looks(train) == [
        *((1.0, seed, ["last"]) for seed in (0, 1)),
        *((2.0, seed, ["uta:2"]) for seed in (0, 1)),
    ]
    assert found.best() is lines[1]


def test_of_equals_the_first_is_chosen_and_a_value_that_is_no_number_never(tmp_path):
    values = {1.0: math.nan, 2.0: 0.3, 4.0: 0.3, 8.0: math.nan}
    line = Line("row", "last", arm("DP-SGD", *values))
    found = perform(study(line, train=Told(by_rate(values))), tmp_path)
    assert found.chosen[line].settings == {"learning_rate": 2.0}


@pytest.mark.parametrize("keeps", [False, True])
def test_settings_may_be_chosen_by_another_use_than_the_one_that_is_tested(
    tmp_path, keeps
):
    scores = {
        1.0: {"last": 0.3, "uta:2": 0.1, "uta:4": 0.2},
        2.0: {"last": 0.1, "uta:2": 0.5, "uta:4": 0.4},
    }
    train = Told(by_rate(scores), keeps=keeps)
    line = Line("row", "UTA_inf", arm("base", *scores), use("uta:2,4"), BROADCAST)
    found = perform(study(line, train=train), tmp_path)
    assert found.chosen[line].settings == {"learning_rate": 1.0}
    assert str(found.chosen[line].method) == "uta:4"
    assert found.chosen[line].validation == 0.2
    # What is trained anew for each look is looked at once.
    looks = [c.learning_rate for c, q in train.asked if q.series == "iterate"]
    assert looks == ([1.0, 1.0, 1.0] if keeps else [1.0, 2.0, 1.0, 1.0])


def test_a_line_takes_over_what_another_has_chosen(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    base = arm("base", 1.0, 2.0)
    smaller = dataclasses.replace(arm("smaller"), grid=({"batch_size": 20},))
    probe = Line("probe", "base", smaller, like=("row", "base"))
    found = perform(study(probe, Line("row", "base", base), train=train), tmp_path)
    assert found.chosen[probe].settings == {"learning_rate": 2.0, "batch_size": 20}
    assert found.config(probe).batch_size == 20
    assert [c.batch_size for c, q in train.asked if q.split == "test"] == [
        20, 20, 50, 50,
    ]  # fmt: skip


def test_what_another_line_has_chosen_stays_while_the_rest_is_chosen(tmp_path):
    values = {(1.0, 50): 0.2, (2.0, 50): 0.4, (1.0, 20): 0.9, (2.0, 20): 0.5}
    train = Told(lambda c, *_: values.get((c.learning_rate, c.batch_size), 0.1))
    first = Line("row", "first", arm("base", 1.0, 2.0))
    sizes = tuple({"batch_size": size} for size in (10, 20, 30))
    grid = dataclasses.replace(arm("sizes"), grid=sizes)
    second = Line("row", "second", grid, like=("row", "first"))
    found = perform(study(second, first, train=train), tmp_path)
    assert found.chosen[second].settings == {"learning_rate": 2.0, "batch_size": 20}
    # In the second stage no other rate is looked at.
    looked = {(c.learning_rate, c.batch_size) for c, _ in train.asked}
    assert looked == {(1.0, 50), (2.0, 50), (2.0, 10), (2.0, 20), (2.0, 30)}
    tried = [settings for settings, _, _ in found.only([second]).candidates(second)]
    assert tried == [{"learning_rate": 2.0, **size} for size in sizes]


def test_lines_that_take_over_from_each_other_are_refused(tmp_path):
    one = Line("row", "a", arm("a"), like=("row", "b"))
    other = Line("row", "b", arm("b"), like=("row", "a"))
    with pytest.raises(ValueError, match="from each other"):
        perform(study(one, other, train=Told(by_rate({1.0: 0.2}))), tmp_path)


def test_where_there_is_no_choice_nothing_is_asked_on_validation_data(tmp_path):
    train = Told(by_rate({1.0: 0.2}))
    line = Line("row", "as published", arm("base"), note="as published")
    found = perform(study(line, train=train), tmp_path)
    assert {question.split for _, question in train.asked} == {"test"}
    assert found.chosen[line].validation is None


def test_what_two_lines_share_is_trained_and_asked_once(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    one, other = arm("one", 1.0, 2.0), arm("other", 2.0)
    lines = Line("row", "one", one), Line("row", "other", other)
    perform(study(*lines, train=train), tmp_path)
    assert len(train.asked) == 4


def test_a_study_that_is_done_asks_nothing_and_a_larger_one_only_what_is_new(tmp_path):
    values = {1.0: 0.2, 2.0: 0.4, 4.0: 0.5}
    train = Told(by_rate(values))
    perform(study(Line("row", "last", arm("a", 1.0, 2.0)), train=train), tmp_path)
    again = Told(by_rate(values))
    same = study(Line("row", "other name", arm("b", 1.0, 2.0)), train=again)
    assert perform(same, tmp_path).values(same.lines[0]) == [0.04, 0.04]
    assert again.asked == []
    more = study(Line("row", "last", arm("a", 1.0, 2.0, 4.0)), train=again)
    found = perform(more, tmp_path)
    assert [c.learning_rate for c, _ in again.asked] == [4.0, 4.0, 4.0]
    # Both choices were tested, the earlier one as well.
    assert found.looks(more.lines[0]) == 2


def test_a_trial_that_fails_once_is_tried_again_and_left_out_after_the_second(tmp_path):
    tried = []

    def value(config, series, method, split):
        tried.append((config.learning_rate, split))
        if config.learning_rate == 2.0:
            raise OverflowError("went astray")
        return config.learning_rate / 10

    line = Line("row", "last", arm("base", 1.0, 2.0, 4.0))
    tiny = study(line, train=Told(value))
    with pytest.raises(TrialsFailedError, match=r"learning_rate=2, seed 100.*astray"):
        perform(tiny, tmp_path)
    assert {split for _, split in tried} == {"heldout"}
    (note,) = (tmp_path / "failed").iterdir()
    assert note.read_text() == "OverflowError: went astray\n"
    assert not results(tiny, tmp_path).lines
    del tried[:]
    found = perform(tiny, tmp_path)
    assert found.chosen[line].settings == {"learning_rate": 4.0}
    assert tried == [(2.0, "heldout"), (4.0, "test"), (4.0, "test")]
    # It does not come back after the test data were looked at.
    del tried[:]
    perform(tiny, tmp_path)
    assert tried == []


def test_where_all_candidates_fail_that_is_an_error(tmp_path):
    def value(*_):
        raise OverflowError("went astray")

    line = Line("row", "last", arm("base", 1.0, 2.0))
    tiny = study(line, train=Told(value))
    with pytest.raises(TrialsFailedError):
        perform(tiny, tmp_path)
    with pytest.raises(RuntimeError, match="all of its candidates have failed"):
        perform(tiny, tmp_path)


def test_a_test_that_fails_does_not_take_the_others_with_it(tmp_path):
    def value(config, series, method, split):
        if config.seed == 0:
            raise OverflowError("went astray")
        return 0.5

    line = Line("row", "last", arm("base"))
    tiny = study(line, train=Told(value))
    with pytest.raises(OverflowError):
        perform(tiny, tmp_path)
    assert results(tiny, tmp_path).seeds == (1,)
    assert results(tiny, tmp_path).values(line) == [0.5]


def test_an_unfinished_study_shows_the_lines_and_seeds_that_are_whole(tmp_path):
    values = {1.0: 0.2, 2.0: 0.4, 4.0: 0.5}
    train = Told(by_rate(values))
    first = Line("row", "first", arm("a", 1.0, 2.0))
    perform(study(first, train=train, seeds=(0,)), tmp_path)
    second = Line("row", "second", arm("b", 2.0, 4.0))
    found = results(study(first, second, train=train), tmp_path)
    assert found.lines == (first,)
    assert found.seeds == (0,)
    fixed = Line("row", "nothing to choose", arm("c", 1.0))
    found = results(study(first, fixed, train=train), tmp_path)
    assert (found.lines, found.seeds) == ((first, fixed), ())
    assert found.only([first]).seeds == (0,)


def test_a_search_alone_tests_nothing(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    line = Line("row", "last", arm("base", 1.0, 2.0))
    found = perform(study(line, train=train, final=None), tmp_path)
    assert {question.split for _, question in train.asked} == {"heldout"}
    assert found.values(line) == [0.4]
    assert found.candidates(line) == [
        ({"learning_rate": 1.0}, "last", [0.2]),
        ({"learning_rate": 2.0}, "last", [0.4]),
    ]


def test_without_seeds_for_the_search_the_tables_own_choose(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    line = Line("row", "last", arm("base", 1.0, 2.0))
    perform(study(line, train=train, search_seeds=()), tmp_path)
    assert [c.seed for c, q in train.asked if q.split == "heldout"] == [0, 1, 0, 1]


def test_no_trial_draws_the_test_sample_by_itself(tmp_path):
    train = Told(by_rate({1.0: 0.2}))
    perform(study(Line("row", "last", arm("base")), train=train), tmp_path)
    assert {config.test_examples for config, _ in train.asked} == {0}


def test_a_metric_that_a_method_has_not_cannot_choose(tmp_path):
    """Otherwise a share of right labels would be taken for a loss."""

    class Loss(Told):
        def answer(self, jobs, place):
            for trial, rows in super().answer(jobs, place):
                yield trial, [row._replace(metric="loss") for row in rows]

    line = Line("row", "votes", arm("base"), use("omv:2,3"))
    with pytest.raises(ValueError, match=r"omv:2.*'accuracy'.*loss"):
        perform(study(line, train=Loss(by_rate({1.0: 0.2}))), tmp_path)


def test_a_chosen_run_is_asked_for_its_curve_as_well(tmp_path):
    train = Told(by_rate({1.0: 0.2}))
    line = Line("row", "last", arm("base"))

    def drawn(line, config):
        return validated(config)

    found = perform(study(line, train=train, drawn=drawn), tmp_path)
    assert found.curve(line) == ([4, 8, 12], [[0.2] * 3, [0.2] * 3])
    assert {q.rounds for _, q in train.asked if q.split == "test"} == {(12,)}


def test_what_a_notebook_reads_has_labels_for_every_score(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    line = Line("row", "last", arm("base", 1.0, 2.0), note="a note")
    found = perform(study(line, train=train), tmp_path)
    rows = read(tmp_path / "scores.csv")
    assert [(r["settings"], r["seed"], r["split"], r["value"]) for r in rows] == [
        ("learning_rate=1", "100", "heldout", "0.2"),
        ("learning_rate=2", "100", "heldout", "0.4"),
        ("learning_rate=2", "0", "test", "0.04"),
        ("learning_rate=2", "1", "test", "0.04"),
    ]
    assert found.frame.height == 4
    (chosen,) = read(tmp_path / "choices.csv")
    assert chosen["settings"] == "learning_rate=2" and chosen["note"] == "a note"
    runs = read(tmp_path / "trials.csv")
    assert len({row["run"] for row in runs}) == len(runs) == 4


def test_a_plan_lists_what_is_left_without_doing_it(tmp_path):
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    lines = Line("row", "a", arm("a", 1.0, 2.0)), Line("row", "b", arm("b"))
    tiny = study(*lines, train=train)
    left = [(job.trial.arm, job.trial.seed) for job in plan(tiny, tmp_path)]
    assert left == [("a", 100), ("a", 100), ("b", 0), ("b", 1)]
    assert train.asked == []
    perform(tiny, tmp_path)
    assert plan(tiny, tmp_path) == []


def test_trials_that_belong_together_are_one_job(tmp_path):
    seen = []

    class Together(Told):
        def answer(self, jobs, place):
            seen.append([job.trial.seed for job in jobs])
            return super().answer(jobs, place)

    train = Together(by_rate({1.0: 0.2, 2.0: 0.4}), together=True)
    lines = Line("row", "a", arm("a", 1.0, 2.0)), Line("row", "b", arm("b", 4.0))
    train.value = by_rate({1.0: 0.2, 2.0: 0.4, 4.0: 0.1})
    perform(study(*lines, train=train, near=lambda trial: trial.seed), tmp_path)
    assert seen == [[100, 100], [0, 0], [1, 1]]


def test_progress_is_told_stage_by_stage(tmp_path):
    told = []
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    line = Line("row", "last", arm("base", 1.0, 2.0))
    perform(
        study(line, train=train), tmp_path, on_progress=lambda *step: told.append(step)
    )
    assert told == [
        *(("search", done, 2) for done in range(3)),
        *(("test", done, 2) for done in range(3)),
    ]


def test_the_stages_of_a_study_have_the_same_processes(tmp_path, monkeypatch):
    """Each would import TensorFlow and compile anew."""
    started = []

    class Counted(search.Processes):
        def __init__(self, *given):
            started.append(given)
            super().__init__(*given)

    monkeypatch.setattr(search, "Processes", Counted)
    train = Told(by_rate({1.0: 0.2, 2.0: 0.4}))
    perform(study(Line("row", "last", arm("a", 1.0, 2.0)), train=train), tmp_path)
    assert {question.split for _, question in train.asked} == {"heldout", "test"}
    assert len(started) == 1


def test_runs_side_by_side_are_told_in_rounds_and_find_the_same(tmp_path):
    told = []
    line = Line("row", "last", arm("base", 1.0, 2.0))
    apart = perform(
        study(line, final=None), tmp_path / "apart", processes=2,
        on_progress=lambda *step: told.append(step),
    )  # fmt: skip
    here = perform(study(line, final=None), tmp_path / "here")
    assert apart.candidates(line) == here.candidates(line)
    assert len(here.candidates(line)) == 2
    stages = {stage for stage, _, _ in told}
    totals = {total for _, _, total in told}
    done = [done for _, done, _ in told]
    assert stages == {"search, 2 runs, rounds"} and totals == {2 * 12}
    assert done[0] == 0 and done[-1] == 2 * 12 and done == sorted(done)
    assert len(set(done)) == 2 * 12 + 1, "every round is told"


def test_a_row_may_not_have_two_lines_of_one_name_and_doubles_are_dropped():
    own, same = arm("a", 1.0), arm("b", 1.0)
    lines = distinct([Line("row", "a", own), Line("row", "b", same)])
    assert [line.name for line in lines] == ["a"]
    with pytest.raises(ValueError, match="two lines of one name"):
        study(Line("row", "a", own), Line("row", "a", same))
