"""Times small rounds of the DP-FTRL process, one by one and grouped, by turns.

`python -m benchmarks.small_rounds` runs this in a process of its own. The last line
printed is JSON: seconds and processor seconds of each round, by variant. `grouped` is
what the library's rule chooses: for the convolutional net that is one by one, too.
"""

import json
import time
from typing import Any

from absl import app, flags

from benchmarks.peers import keras_models, workload

_TASK = flags.DEFINE_enum("task", "lstm", sorted(workload.TASKS), "What is trained.")
_USERS = flags.DEFINE_integer("users", 100, "Users in a round.")
_EXAMPLES = flags.DEFINE_integer("examples", 8, "Examples of each user.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the first one compiles.")
_GROUP = flags.DEFINE_integer("group_users", 25, "Users in a group.")
_ALWAYS = flags.DEFINE_bool("always_group", False, "Group whatever the rule says.")


def main(argv: list[str]) -> None:
    del argv
    import numpy as np
    import tensorflow as tf

    from tff_agg import runtime

    runtime.configure_threads()
    runtime.keep_memory()
    runtime.use("local")
    task = workload.TASKS[_TASK.value]
    variants = _next_word(task) if isinstance(task, workload.Sentences) else _any(task)
    found: dict[str, dict[str, Any]] = {
        name: {"rounds": [], "cpu": []} for name in variants
    }
    states = {name: process.initialize() for name, (process, _) in variants.items()}
    for _ in range(_ROUNDS.value):
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


def _process(model: Any, **arguments: Any) -> Any:
    from tff_agg import averaging, noise, privacy
    from tff_agg.learning import process

    plan = privacy.Plan(
        clip_norm=workload.CLIP_NORM,
        cohort_size=_USERS.value,
        rounds=1024,
        mechanism=noise.tree(),
        noise_multiplier=workload.NOISE_MULTIPLIER,
    )
    return process.build_dp_ftrl_process(
        model, plan=plan, averager=averaging.uta(3), server_momentum=0.9, **arguments
    )


def _next_word(task: workload.Sentences) -> dict[str, tuple[Any, list[Any]]]:
    """The project's own model: packed training."""
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import group_training as group_trainer
    from stackoverflow.model import local_training as trainer
    from stackoverflow.model import next_word as model
    from tff_agg.learning import grouping

    config = model.ModelConfig(
        vocab_size=task.ids - 4,
        embedding_size=task.width,
        lstm_size=task.units,
        max_tokens=task.steps,
    )
    rate, batch = workload.CLIENT_RATE, task.batch
    rows = [
        r.astype(np.int32)
        for r in workload.sentences(task, _USERS.value, _EXAMPLES.value)
    ]
    one = trainer.packed_trainer(config, rate, batch_size=batch)
    all_ = group_trainer.packed_group_trainer(config, rate, batch_size=batch)
    groups = grouping.form_groups([len(r) for r in rows], _GROUP.value)
    return {
        "one_by_one": (
            _process(one),
            [tf.data.Dataset.from_tensors(r) for r in rows],
        ),
        "grouped": (
            _process(all_),
            [group_trainer.group_of_rows([rows[i] for i in group]) for group in groups],
        ),
    }


def _any(task: workload.Pictures) -> dict[str, tuple[Any, list[Any]]]:
    """Any functional model, here from Keras."""
    import tensorflow_federated as tff

    from tff_agg.learning import grouping, vectorized

    clients = keras_models.datasets(task, _USERS.value, _EXAMPLES.value)
    model = tff.learning.models.functional_model_from_keras(
        keras_models.build(task),
        keras_models.loss(task),
        input_spec=clients[0].element_spec,
    )
    rate = workload.CLIENT_RATE
    variants = {"one_by_one": (_process(model, client_optimizer=rate), clients)}
    if not (vectorized.pays(model) or _ALWAYS.value):
        return variants
    groups = [
        grouping.group_batches(
            [clients[i].as_numpy_iterator() for i in group], model.input_spec
        )
        for group in grouping.form_groups(
            [_EXAMPLES.value] * len(clients), _GROUP.value
        )
    ]
    grouped = _process(model, client_optimizer=rate, grouped=True)
    return {**variants, "grouped": (grouped, groups)}


if __name__ == "__main__":
    app.run(main)
