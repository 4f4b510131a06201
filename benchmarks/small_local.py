"""Times small rounds of the DP-FTRL process, one by one and grouped, by turns.

`python -m benchmarks.small_rounds` runs this in a process of its own. The last line
printed is JSON: seconds and processor seconds of each round, by variant. `grouped` is
what the library's rule chooses: for the convolutional net that is one by one, too.
"""

import dataclasses
import json
import time
from typing import Any

from benchmarks import programs
from benchmarks.peers import keras_models, workload
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of a round, and where it is computed."""

    task: str = described("lstm", "what is trained", sorted(workload.TASKS))
    users: int = described(100, "users of a round", at_least=1)
    examples: int = described(8, "examples of each", at_least=1)
    rounds: int = described(5, "rounds; the first compiles", at_least=1)
    group_users: int = described(25, "users of a group", at_least=1)
    always_group: bool = described(False, "whatever the rule says")
    runtime: str = described("local", "where lanes are", ("local", "ray"))
    lanes: int | None = described(None, "lanes; as many as cores by default")


def main(given: Options) -> None:
    """Times rounds, and prints JSON."""
    import numpy as np
    import tensorflow as tf

    from tff_agg import runtime

    runtime.configure_threads()
    runtime.keep_memory()
    runtime.use(given.runtime, lanes=given.lanes)
    task = workload.TASKS[given.task]
    variants = (
        _next_word(task, given)
        if isinstance(task, workload.Sentences)
        else _any(task, given)
    )
    found: dict[str, dict[str, Any]] = {
        name: {"rounds": [], "cpu": []} for name in variants
    }
    states = {name: process.initialize() for name, (process, _) in variants.items()}
    for _ in range(given.rounds):
        for name, (process, clients) in variants.items():
            start, before = time.perf_counter(), time.process_time()
            states[name] = process.next(states[name], clients).state
            # The first weights may be there before the last ones.
            tf.nest.map_structure(
                np.asarray, states[name].global_model_weights.trainable
            )
            found[name]["rounds"].append(time.perf_counter() - start)
            found[name]["cpu"].append(time.process_time() - before)
    print(json.dumps(found))


def _process(given: Options, model: Any, **arguments: Any) -> Any:
    from tff_agg import averaging, noise, privacy
    from tff_agg.federated import process

    plan = privacy.Plan(
        clip_norm=workload.CLIP_NORM,
        cohort_size=given.users,
        rounds=1024,
        mechanism=noise.tree(),
        noise_multiplier=workload.NOISE_MULTIPLIER,
    )
    return process.build_dp_ftrl_process(
        model, plan=plan, averager=averaging.uta(3), server_momentum=0.9, **arguments
    )


def _next_word(
    task: workload.Sentences, given: Options
) -> dict[str, tuple[Any, list[Any]]]:
    """The project's own model: packed training."""
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import group_training as group_trainer
    from stackoverflow.model import local_training, next_word
    from tff_agg.federated import grouping

    config = next_word.ModelConfig(
        vocab_size=task.ids - 4,
        embedding_size=task.width,
        lstm_size=task.units,
        max_tokens=task.steps,
    )
    rate, batch = workload.CLIENT_RATE, task.batch
    rows = [
        r.astype(np.int32)
        for r in workload.sentences(task, given.users, given.examples)
    ]
    one = local_training.packed_trainer(config, rate, batch_size=batch)
    all_ = group_trainer.packed_group_trainer(config, rate, batch_size=batch)
    groups = grouping.form_groups([len(r) for r in rows], given.group_users)
    return {
        "one_by_one": (
            _process(given, one),
            [tf.data.Dataset.from_tensors(r) for r in rows],
        ),
        "grouped": (
            _process(given, all_),
            [group_trainer.group_of_rows([rows[i] for i in group]) for group in groups],
        ),
    }


def _any(task: workload.Pictures, given: Options) -> dict[str, tuple[Any, list[Any]]]:
    """Any functional model, here from Keras."""
    import tensorflow_federated as tff

    from tff_agg.federated import grouping, vectorized

    clients = keras_models.datasets(task, given.users, given.examples)
    model = tff.learning.models.functional_model_from_keras(
        keras_models.build(task),
        keras_models.loss(task),
        input_spec=clients[0].element_spec,
    )
    rate = workload.CLIENT_RATE
    variants = {"one_by_one": (_process(given, model, client_optimizer=rate), clients)}
    if not (vectorized.pays(model) or given.always_group):
        return variants
    batches = [
        [
            (x[i : i + task.batch], y[i : i + task.batch])
            for i in range(0, len(y), task.batch)
        ]
        for x, y in workload.pictures(task, given.users, given.examples)
    ]
    groups = [
        grouping.group_batches([batches[i] for i in group], model.input_spec)
        for group in grouping.form_groups([len(b) for b in batches], given.group_users)
    ]
    grouped = _process(given, model, client_optimizer=rate, grouped=True)
    return {**variants, "grouped": (grouped, groups)}


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
