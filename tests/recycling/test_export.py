"""Exported models: the aggregate's predictions, its words, its error bars."""

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

from stackoverflow import next_words
from stackoverflow.task import StackOverflow
from tests import command_lines, forked
from tests.data import rows_by_hand
from tff_agg.experiment import exported
from tff_agg.experiment.commands import export
from tff_agg.experiment.runs import Run
from tff_agg.recycling import methods
from tff_agg.recycling.methods import Method
from tff_agg.recycling.series import Stored


@pytest.fixture(scope="module")
def model(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "uta"
    config = export.ExportConfig(
        run=runs[0], out=str(out), method=Method("uta", 4), checkpoints=3
    )
    export.export(StackOverflow, config)
    return out


def distribution(run, weights, text):
    """The next word's distribution, by the packed model that training uses."""
    known = run.task.data.vocabulary
    # The last word counts; what it is does not change the prediction.
    sentence = f"{text} {known.words[0]}"
    row = rows_by_hand.row(known, sentence, run.task.data.max_tokens)
    return run.task.predictor()(weights, row[None]).scores[-1]


def test_the_exported_model_predicts_what_the_aggregate_does(runs, model):
    run = Run.open(StackOverflow, runs[0])
    known = run.task.data.vocabulary
    text = " ".join(known.words[i] for i in (3, 0, 7))
    guess = next_words.NextWords(model)(text, count=known.vocab_size + 1)
    found = {word: share for word, share, *_ in guess.words}
    series = Stored(run.rounds(), run.loader("aggregate"))
    weights = methods.aggregate(series, Method("uta", 4), 8)
    expected = distribution(run, weights, text)
    for i, word in enumerate(known.words, start=1):
        assert found[word] == pytest.approx(expected[i], rel=1e-4)
    assert found[next_words.END] == pytest.approx(expected[known.eos], rel=1e-4)
    assert guess.other.probability == pytest.approx(expected[known.oov], rel=1e-4)
    shares = [word.probability for word in guess.words]
    assert shares == sorted(shares, reverse=True)
    # It is the mean of parameters, not the last checkpoint.
    last = distribution(run, run.load(run.rounds()[-1], "aggregate"), text)
    assert not np.allclose(expected, last, rtol=1e-2)


def test_error_bars_are_the_intervals_of_the_stored_checkpoints(runs, model):
    run = Run.open(StackOverflow, runs[0])
    known = run.task.data.vocabulary
    text = known.words[2]
    newest = [
        distribution(run, run.load(t, "aggregate"), text) for t in run.rounds()[-3:]
    ]
    spread = np.std(newest, axis=0, ddof=1)
    reach = scipy.stats.t.ppf(0.975, 2) / np.sqrt(3) * spread
    mean = np.mean(newest, axis=0)
    for word, _, low, high in next_words.NextWords(model)(text, count=20).words:
        place = known.eos if word == next_words.END else known.words.index(word) + 1
        # A probability is neither below 0 nor above 1.
        assert low == pytest.approx(max(mean[place] - reach[place], 0), rel=1e-3)
        assert high == pytest.approx(min(mean[place] + reach[place], 1), rel=1e-3)


def test_the_folder_says_what_the_model_is(runs, model):
    facts = json.loads((model / "model.json").read_text())
    assert facts["method"] == "uta:4" and facts["checkpoints"] == "aggregate"
    assert facts["rounds_averaged"] == [5, 8, 4]
    assert facts["rounds_for_error_bars"] == [6, 7, 8]
    assert facts["error_bars_times"] == 1 and "too few" in facts["error_bars"]
    assert facts["guarantee"]["epsilon"] > 0
    words = json.loads((model / "vocabulary.json").read_text())
    assert tuple(words) == Run.open(StackOverflow, runs[0]).task.data.vocabulary.words
    assert facts["special_ids"]["unknown"] == len(words) + 3


def test_checkpoints_are_as_far_apart_as_the_predictions_ask_for(long_run, tmp_path):
    out = tmp_path / "m"
    config = export.ExportConfig(run=long_run, out=str(out), examples=40)
    facts = export.export(StackOverflow, config)
    rounds = facts["rounds_for_error_bars"]
    assert rounds[-1] == 48 and len(rounds) == 10
    # Its weights walk: they forget nothing.
    assert facts["error_bars_times"] > 1.2
    model = exported.ExportedModel.open(out)
    assert len(model.checkpoints()) == 10
    scores = [np.array([0.50]), np.array([0.51])]
    low, high = exported.intervals(iter(scores), 2.0)
    np.testing.assert_allclose(
        high - low, 4 * (0.505 - exported.intervals(iter(scores))[0])
    )
    assert exported.intervals(iter([np.zeros(1), np.ones(1)])) == (0, 1)
    words = next_words.NextWords(out)
    (wide,) = words("", count=1).words
    words.facts = {**words.facts, "error_bars_times": 1.0}
    (narrow,) = words("", count=1).words
    assert wide.high - wide.low > narrow.high - narrow.low


def test_words_that_the_model_does_not_know_are_named(model):
    guess = next_words.NextWords(model)("zebra quagga")
    assert guess.unknown == ["zebra", "quagga"]


def test_nothing_is_left_where_an_export_fails(runs, tmp_path):
    config = export.ExportConfig(
        run=runs[0], out=str(tmp_path / "m"), method=Method("uta", 10)
    )
    with pytest.raises(ValueError, match="only 9 checkpoints"):
        export.export(StackOverflow, config)
    with pytest.raises(AttributeError):
        exported.write(tmp_path / "m", None, {}, [], {})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(runs, model):
    config = export.ExportConfig(run=runs[0], out=str(model))
    before = (model / "model.json").read_bytes()
    with pytest.raises(FileExistsError, match="is there already"):
        export.export(StackOverflow, config)
    assert (model / "model.json").read_bytes() == before


def test_another_folder_is_no_exported_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no exported model: .* model\.json"):
        next_words.NextWords(tmp_path)


@pytest.mark.parametrize(
    "flags",
    [{"run": ""}, {"out": ""}, {"checkpoints": 1}, {"method": Method("opa", 3)}],
)
def test_bad_flags_are_refused_by_name(flags):
    (name,) = flags
    with pytest.raises(ValueError, match=name):
        export.ExportConfig(**({"run": "r", "out": "o"} | flags))


@pytest.mark.slow
def test_the_binary_answers_a_text_and_line_after_line(model):
    flags = [f"--model={model}", "--words=2"]
    once = forked.run(command_lines.program("predict"), *flags, "how do", "i")
    assert once.returncode == 0, once.stderr
    assert "not in the vocabulary: how, do, i" in once.stdout
    assert "checkpoints: 95 % from" in once.stdout
    twice = subprocess.run(
        [sys.executable, "-m", "stackoverflow", "predict", *flags],
        input="one\ntwo\n",
        capture_output=True,
        text=True,
    )
    assert twice.returncode == 0, twice.stderr
    assert twice.stdout.count("next word") == 2
