"""Always the same answer stands beside the scores of models."""

import numpy as np
import pytest

from examples.diabetes.task import Diabetes, DiabetesConfig
from examples.emnist.task import Emnist, EmnistConfig
from stackoverflow.model import metrics, next_word
from tff_agg.experiment.run import recording
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run.tables import read_rows
from tff_agg.recycling import problems
from tff_agg.recycling.metrics import ACCURACY


def test_of_classes_it_is_the_most_frequent_one_with_the_shares():
    labels = np.array([2, 0, 2, 1])
    constant = problems.CLASSIFICATION.constant(labels)
    assert constant.tolist() == [[0.25, 0.25, 0.5]]
    task = Emnist(EmnistConfig(noise_multiplier=1.0, writers=20, clients_per_round=2))
    sample = task.fixed_sample("heldout", 300)
    found = task.trivial(sample)
    labels = np.concatenate([labels for _, labels in sample.values()])
    most = np.bincount(labels).argmax()
    assert found["all"]["accuracy"] == pytest.approx(np.mean(labels == most))
    assert found["odd"]["accuracy"] == pytest.approx(np.mean(sample["odd"][1] == most))
    shares = np.bincount(labels) / len(labels)
    assert found["all"]["loss"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_of_numbers_it_is_their_mean():
    task = Diabetes(
        DiabetesConfig(noise_multiplier=1.0, doctors=20, clients_per_round=2)
    )
    sample = task.fixed_sample("test", 500)
    labels = sample["all"][1]
    found = task.trivial(sample)["all"]
    assert found["loss"] == pytest.approx(np.var(labels))
    assert found["absolute_error"] == pytest.approx(
        np.abs(labels - labels.mean()).mean()
    )


def test_of_words_it_is_what_a_model_of_biases_gives(make_task):
    """A model that knows nothing but the words' shares, judged by the task's own."""
    task = make_task()
    sample = task.fixed_sample("heldout", 60)
    weights = {n: np.zeros_like(w) for n, w in task.initial_weights().items()}
    found = task.trivial(sample)
    counts = np.zeros(task.sizes.num_ids)
    for rows in sample.values():
        counts += np.bincount(rows[:, 1:].ravel(), minlength=len(counts))
    counts[0] = 0
    bias = np.log(np.maximum(counts, 1e-9) / counts.sum())
    (name,) = (n for n, w in weights.items() if w.shape == (len(counts),))
    weights[name] = bias.astype(np.float32)
    scored = task.evaluator()(weights, sample)
    for group, values in scored.items():
        for metric in ("loss", "tokens", "accuracy_all"):
            assert found[group][metric] == pytest.approx(values[metric], rel=1e-5)
    # Whoever may not guess the end of a sentence guesses a word.
    assert found["all"]["accuracy"] > 0


def test_the_most_frequent_of_what_counts():
    sizes = next_word.ModelConfig(vocab_size=3, embedding_size=2, lstm_size=2)
    ids = [1, 2, 2, *[sizes.oov] * 4, *[sizes.eos] * 5]
    found = metrics.of_shares(sizes, {"question": np.array(ids)})["all"]
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy_with_oov"] == pytest.approx(4 / 7)
    assert found["accuracy_all"] == pytest.approx(5 / 12)


def test_a_run_has_it_beside_its_scores_and_says_where_it_ends_below(
    make_task, cache, tmp_path, capsys
):
    from tff_agg.experiment import terminal

    task = make_task(rounds=2, noise_multiplier=50.0)
    outcome = training.run(
        task, tmp_path, terminal.TrainingBar(task.metrics), compiled=cache
    )
    for name in ("validation.csv", "test.csv"):
        rows = read_rows(tmp_path / name)
        found = {r["weights"]: r for r in rows if r["group"] == "all"}
        assert list(found) == ["iterate", "aggregate", "trivial"]
    trivial = outcome.test["trivial"]["all"]["accuracy"]
    assert float(found["trivial"]["accuracy"]) == trivial
    shown = " ".join(capsys.readouterr().out.split())
    assert "This model is no better than always the same answer" in shown
    assert f"accuracy % {100 * float(found['aggregate']['accuracy']):.2f} agai" in shown


def test_it_is_judged_by_the_first_metric():
    def of(accuracy):
        return {
            "aggregate": {"all": {"accuracy": accuracy}},
            "trivial": {"all": {"accuracy": 0.5}},
        }

    assert recording.below_trivial(of(0.6), [ACCURACY]) == ""
    assert "accuracy % 50.00 against 50.00" in recording.below_trivial(
        of(0.5), [ACCURACY]
    )
    assert recording.below_trivial({"aggregate": {}}, [ACCURACY]) == ""
