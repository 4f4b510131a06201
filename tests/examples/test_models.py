"""Any Keras model trains, and is scored, saved and exported: examples of each kind."""

import json

import numpy as np
import pytest

from examples.diabetes.task import Diabetes, DiabetesConfig
from examples.emnist.models import FrozenBackbone, Transformer
from examples.emnist.task import Emnist, EmnistConfig
from tff_agg.experiment import build
from tff_agg.experiment.build import Compiled
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.recycling import problems
from tff_agg.recycling.methods import parse_methods
from tff_agg.recycling.metrics import Metric

PLAIN = {
    "noise_multiplier": 0.0,
    "averager": "last",
    "server_momentum": 0.5,
    "server_learning_rate": 1.0,
    "clip_norm": 1.0,
    "batch_size": 10,
    "clients_per_round": 20,
    "validation_examples": 500,
    "test_examples": 500,
    "insecure_noise_seed": 1,
}


def last_model(task):
    with Compiled() as compiled:
        return list(build.rounds(build.build(task, compiled)))[-1].aggregate


def scores(task, weights, split="heldout"):
    return task.evaluator()(weights, task.fixed_sample(split, 500))["all"]


@pytest.mark.slow
@pytest.mark.parametrize("task_class", [Transformer, FrozenBackbone])
def test_a_transformer_and_a_frozen_backbone_learn_the_digits(task_class):
    config = EmnistConfig(
        **PLAIN | {"clients_per_round": 10}, writers=100, rounds=8,
        client_learning_rate=0.3,
    )  # fmt: skip
    task = task_class(config)
    before, after = (
        scores(task, w)["loss"] for w in (task.initial_weights(), last_model(task))
    )
    assert after < 0.95 * before


def test_names_of_weights_are_unique_and_the_same_in_every_process():
    task = Transformer(EmnistConfig(**PLAIN))
    names = list(task.shapes)
    assert len(set(names)) == len(names) == len(task.initial_weights())
    assert {n for n in names if "multiheadattention/query" in n}
    # Built again, Keras counts on: its own names differ, these do not.
    assert names == list(Transformer(EmnistConfig(**PLAIN)).shapes)


def test_frozen_weights_are_constants_and_part_of_what_a_run_is():
    class Others(FrozenBackbone):
        def keras_model(self, seed):
            model = super().keras_model(seed)
            frozen = model.layers[0]
            frozen.set_weights([1 + w for w in frozen.get_weights()])
            return model

    task, other = (t(EmnistConfig(**PLAIN)) for t in (FrozenBackbone, Others))
    assert list(task.shapes) == ["1_dense/kernel", "1_dense/bias"]
    assert task.constants_digest and task.constants_digest != other.constants_digest
    assert Emnist(EmnistConfig(**PLAIN)).constants_digest == ""
    with Compiled() as compiled:
        facts = build.build(task, compiled).model_facts()
    assert facts["constants"] == task.constants_digest
    exported = task.to_keras(task.initial_weights())
    assert len(exported.weights) == 2 + 6


@pytest.mark.slow
def test_a_regression_trains_and_is_recycled(tmp_path):
    config = DiabetesConfig(
        **PLAIN, rounds=12, client_learning_rate=0.1, evaluate_every=10
    )
    task = Diabetes(config)
    outcome = training.run(task, tmp_path / "run")
    labels = task.fixed_sample("test", 500)["all"][1]
    # Better than always the mean.
    assert outcome.test["aggregate"]["all"]["loss"] < 0.9 * np.var(labels)
    run = Run.open(Diabetes, tmp_path / "run")
    predict, rows = task.predictor(), task.flat_sample(task.fixed_sample("test", 500))
    mean = np.mean([predict(run.load(r), rows).scores for r in (11, 12)], axis=0)
    expected = np.mean((mean[:, 0] - rows.labels) ** 2)
    from tff_agg.recycling import outputs

    found = outputs.aggregate_outputs(
        run.load, run.rounds(), [12], [2], predict, rows,
        classes=task.classes, judge=task.judge(),
    ).values  # fmt: skip
    assert list(found) == [("OPA", 12, 2)]
    assert found["OPA", 12, 2]["loss"] == pytest.approx(expected)
    assert json.loads((tmp_path / "run/config.json").read_text())["doctors"] == 1000


def test_a_vote_over_numbers_is_refused_with_the_reason():
    from tff_agg.recycling.methods import applicable

    asked = parse_methods("opa:2 omv:2")
    assert [str(m) for m in applicable(asked, Diabetes.no_vote)] == ["opa:2"]
    assert "no two models predict the same" in Diabetes.no_vote
    assert [m.name for m in Diabetes.metrics] == ["loss", "absolute_error"]


def test_outputs_that_are_not_finite_are_refused():
    task = Diabetes(DiabetesConfig(**PLAIN))
    broken = {n: np.full_like(w, np.nan) for n, w in task.initial_weights().items()}
    from tff_agg.recycling import outputs

    rows = task.flat_sample(task.fixed_sample("test", 500))
    with pytest.raises(outputs.DivergedError, match="not finite"):
        outputs.aggregate_outputs(
            lambda number: broken, [1], [1], [1], task.predictor(), rows,
            classes=1, judge=task.judge(),
        )  # fmt: skip


class Ranking(Diabetes):
    """Lists of three patients, to be put in order: a loss of one's own."""

    problem = problems.Problem(
        (Metric("loss", higher_is_better=False),),
        lambda outputs, labels: {"loss": _pairs(np, outputs, labels).mean(axis=(1, 2))},
        no_vote="lists are ranked",
    )

    def examples_of(self, user, group):
        features, labels = super().examples_of(user, group)
        lists = features.reshape(2, 3, 10)
        # Two inputs: measurements, and which doctor it is.
        return {"doctor": np.full(2, user % 7), "x": lists}, labels.reshape(2, 3)

    def evaluation_examples(self, split):
        features, labels = super().evaluation_examples(split)["all"]
        n = len(labels) // 3
        lists = features[: 3 * n].reshape(n, 3, 10)
        return {
            "all": (
                {"doctor": np.arange(n) % 7, "x": lists},
                labels[: 3 * n].reshape(n, 3),
            )
        }

    def loss(self):
        import tensorflow as tf

        return lambda labels, outputs: tf.reduce_mean(_pairs(tf, outputs, labels))

    def keras_model(self, seed):
        import tensorflow as tf

        layers = tf.keras.layers
        x = tf.keras.Input([3, 10], name="x")
        doctor = tf.keras.Input([], dtype="int32", name="doctor")
        of_doctor = layers.Embedding(7, 10)(doctor)
        both = x + of_doctor[:, None, :]
        score = layers.Dense(1, kernel_initializer="zeros")(both)
        return tf.keras.Model([x, doctor], score[..., 0])


def _pairs(np_or_tf, outputs, labels):
    """The logistic loss of every pair of a list, in the right order."""
    ahead = labels[:, :, None] > labels[:, None, :]
    margins = outputs[:, :, None] - outputs[:, None, :]
    softplus = np_or_tf.logaddexp(0.0, -margins) if np_or_tf is np else None
    if softplus is None:
        softplus = np_or_tf.math.softplus(-margins)
        return softplus * np_or_tf.cast(ahead, softplus.dtype)
    return softplus * ahead


@pytest.mark.slow
def test_a_ranking_with_several_inputs_and_a_loss_of_its_own_learns():
    config = DiabetesConfig(**PLAIN, rounds=15, client_learning_rate=0.3)
    task = Ranking(config)
    assert task.classes == 3
    assert [name.partition("_")[2] for name in task.shapes] == [
        "embedding/embeddings",
        "dense/kernel",
        "dense/bias",
    ]
    before, after = (
        scores(task, w)["loss"] for w in (task.initial_weights(), last_model(task))
    )
    assert after < 0.85 * before


def test_statistics_of_data_that_training_changes_are_refused_by_name():
    class Normalised(Emnist):
        def keras_model(self, seed):
            import tensorflow as tf

            return tf.keras.Sequential(
                [
                    tf.keras.layers.InputLayer([8, 8, 1]),
                    tf.keras.layers.BatchNormalization(name="norm"),
                    tf.keras.layers.Flatten(),
                    tf.keras.layers.Dense(10),
                ]
            )

    with pytest.raises(ValueError, match=r"norm/moving_mean.*norm/moving_variance"):
        Normalised(EmnistConfig(**PLAIN)).model()


def test_a_model_that_is_a_class_of_its_own_is_built_from_the_data():
    class Own(Diabetes):
        def keras_model(self, seed):
            import tensorflow as tf

            class Network(tf.keras.Model):
                def __init__(self):
                    super().__init__()
                    self.blocks = [tf.keras.layers.Dense(4) for _ in range(3)]
                    self.last = tf.keras.layers.Dense(1)

                def call(self, x):
                    for block in self.blocks:
                        x = tf.nn.swish(block(x))
                    return self.last(x)

            return Network()

    task = Own(DiabetesConfig(**PLAIN))
    assert len(task.shapes) == 8 and task.classes == 1
    assert task.model().input_spec[0].shape.as_list() == [None, 10]


def test_a_number_of_inputs_that_the_model_has_not_is_refused():
    class Two(Diabetes):
        def examples_of(self, user, group):
            features, labels = super().examples_of(user, group)
            return (features, features), labels

    with pytest.raises(ValueError, match="2 arrays of features; its model has 1 input"):
        Two(DiabetesConfig(**PLAIN)).model()
