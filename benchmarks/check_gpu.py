"""Checks on a GPU what could only be checked on CPUs: `make check-gpu`, run once.

    python -m benchmarks.check_gpu [--task=large_lstm] [--rehearse]

It prints the devices, then runs the same round on the CPU and on the GPU from one seed:
where noise and step ran, how far the models are apart, how long both took. A step of
DP-SGD in JAX likewise, where JAX sees a GPU. TensorFlow and JAX have locks of their own
for GPUs, so that each of them may see none.

The exit status is 0 if all that could be checked is right, 1 if not, and 2 if there was
no GPU and nothing was checked. `--rehearse` puts a second logical CPU in the place of
the GPU: it tests this program and no GPU.
"""

import dataclasses
import time
from typing import Any

from benchmarks import programs
from benchmarks.peers import workload
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """The round that is run on both."""

    task: str = described(
        "large_lstm", "which model: see peers/workload.py", ("large_lstm", "lstm")
    )
    users: int = described(16, "clients in a round", at_least=1)
    sentences: int = described(64, "sentences of each", at_least=1)
    rounds: int = described(4, "rounds; the first compiles", at_least=2)
    rehearse: bool = described(False, "a logical CPU stands for the GPU")


#: How far apart two devices' updates may be, as a share of the largest number in them:
#: GPUs of the last years multiply matrices with 10 bits after the point.
_ALLOWED = 0.02
_SEED = (1, 2, 3, 4)
_REPORT = """
Please report, in an issue: everything above, `nvidia-smi`, and the output of
`.venv/bin/pip list`. Until somebody has, the documents say that no GPU was tried."""


def main(options: Options) -> int:
    """Checks, prints, and returns the exit status."""
    checks = [check(options) for check in (_tensorflow, _jax)]
    if all(check is None for check in checks):
        print("\nno GPU found; nothing was checked")
        return 2
    print(_REPORT)
    failed = [fault for check in checks for fault in check or ()]
    print("\n".join(["", *(f"WRONG: {fault}" for fault in failed)]))
    print("wrong" if failed else "all that was checked is right")
    return 1 if failed else 0


def _tensorflow(options: Options) -> list[str] | None:
    """Compares a round of DP-FTRL; returns what is wrong, None without a GPU."""
    from tff_agg import runtime

    runtime.set_up_tensorflow()
    import tensorflow as tf

    if options.rehearse:
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    with_cuda = tf.test.is_built_with_cuda()
    print(f"TensorFlow {tf.__version__}, built with CUDA: {with_cuda}")
    for gpu in tf.config.list_physical_devices("GPU"):
        print(f"  {gpu.name}: {tf.config.experimental.get_device_details(gpu)}")
        growing = tf.config.experimental.get_memory_growth(gpu)
        print(f"  memory grows as needed: {growing}")
    seen = [device.name for device in tf.config.list_logical_devices()]
    print(f"  {', '.join(seen)}")
    others = [name for name in seen if not name.endswith("CPU:0")]
    if not others:
        print("  TensorFlow sees no GPU")
        return None
    gpu = others[0]
    faults = _noise(gpu)
    ours = _rounds(options, _on("CPU:0"))
    theirs = _rounds(options, _on("CPU:1") if options.rehearse else {})
    faults += _compared("a round of DP-FTRL", ours, theirs)
    if theirs["server"] != gpu:
        faults.append(f"noise and step were to run on {gpu}, not {theirs['server']}")
    for what in ("model", "noise"):
        if not all(place.endswith(gpu) for place in theirs[what]):
            faults.append(f"the {what} of a state on {gpu} is on {theirs[what]}")
    return faults


def _on(device: str) -> dict[str, Any]:
    """Returns the runtime's options that put all work on a device."""
    return {"lanes": 1, "devices": [device], "server_device": device}


def _noise(gpu: str) -> list[str]:
    """Compares the normals that one seed gives on both devices."""
    import numpy as np
    import tensorflow as tf

    from tff_agg import noise

    mechanism, made = noise.tree(), []
    for device in ("CPU:0", gpu):
        with tf.device(device):
            like = [tf.zeros([1_000_000])]
            state = mechanism.init(like, _SEED)
            _, (drawn,) = tf.function(mechanism.next)(state, like)
        made.append(drawn.numpy())
        print(f"noise of one seed: drawn on {drawn.device}")
    same = np.mean(made[0] == made[1])
    apart = np.max(np.abs(made[0] - made[1]))
    print(
        f"  {100 * same:.4f} % of a million normals have the same bits, the others "
        f"are up to {apart:.2g} apart"
    )
    if apart < 1e-4:
        return []
    return [f"one seed gives normals that are {apart:.2g} apart"]


def _rounds(options: Options, places: dict[str, Any]) -> dict[str, Any]:
    """Runs rounds on a runtime of its own; returns the update, places and times."""
    import numpy as np
    import tensorflow as tf
    import tree

    from stackoverflow.model import local_training, next_word
    from tff_agg import averaging, noise, privacy, runtime
    from tff_agg.federated import process
    from tff_agg.server import state as states

    task = workload.TASKS[options.task]
    assert isinstance(task, workload.Sentences)
    config = next_word.ModelConfig(
        vocab_size=task.ids - 4, embedding_size=task.width, lstm_size=task.units,
        max_tokens=task.steps,
    )  # fmt: skip
    plan = privacy.Plan(
        clip_norm=workload.CLIP_NORM, cohort_size=options.users, rounds=64,
        mechanism=noise.blt(64, 2), noise_multiplier=workload.NOISE_MULTIPLIER,
    )  # fmt: skip
    training = process.build_dp_ftrl_process(
        local_training.packed_trainer(
            config, workload.CLIENT_RATE, batch_size=task.batch
        ),
        plan=plan,
        averager=averaging.uta(3),
        server_momentum=0.9,
    )
    cohort = workload.sentences(task, options.users, options.sentences)
    data = [tf.data.Dataset.from_tensors(rows.astype(np.int32)) for rows in cohort]
    first: list[np.ndarray] = []
    seconds = []
    with runtime.running_on("local", **places) as context:
        state = states.with_noise_seed(training.initialize(), _SEED)
        start = [np.asarray(w) for w in state.global_model_weights.trainable]
        for _ in range(options.rounds):
            began = time.perf_counter()
            state = training.next(state, data).state
            weights = [np.asarray(w) for w in state.global_model_weights.trainable]
            seconds.append(time.perf_counter() - began)
            first = first or [w - s for w, s in zip(weights, start, strict=True)]
        lanes = ", ".join(sorted({lane.device for lane in context.lanes}))
        print(
            f"round on {lanes}, server on {context.server_device}: {_in_words(seconds)}"
        )

    def where(part: Any) -> list[str]:
        return sorted({
            leaf.device for leaf in tree.flatten(part)
            if tf.is_tensor(leaf) and leaf.dtype.is_floating
        })  # fmt: skip

    return {
        "update": first,
        "seconds": seconds,
        "server": context.server_device,
        "model": where(state.global_model_weights),
        "noise": where(state.aggregator),
    }


def _jax(options: Options) -> list[str] | None:
    """Compares a step of DP-SGD; returns what is wrong, None without a GPU."""
    import jax

    gpus = [device for device in jax.devices() if device.platform != "cpu"]
    print(f"JAX {jax.__version__}: {', '.join(map(str, jax.devices()))}")
    if options.rehearse:
        gpus = jax.devices("cpu")
    if not gpus:
        print("  JAX sees no GPU: CIFAR and pCVR would train on the CPU")
        return None
    ours, theirs = (
        _steps(options, device) for device in (jax.devices("cpu")[0], gpus[0])
    )
    faults = _compared("a step of DP-SGD", ours, theirs)
    if theirs["model"] != [gpus[0]]:
        faults.append(f"the model of a step on {gpus[0]} is on {theirs['model']}")
    return faults


def _steps(options: Options, device: Any) -> dict[str, Any]:
    """Takes steps of logistic regression on a device."""
    import jax
    import numpy as np

    from tff_agg import noise, privacy
    from tff_agg.sample.dp_sgd import DPSGDProcess
    from tff_agg.sample.per_example import SampleModel

    def loss(weights: Any, example: Any) -> Any:
        features, label = example
        return -jax.nn.log_softmax(features @ weights["kernel"])[label]

    plan = privacy.Plan(
        clip_norm=1.0, cohort_size=512, rounds=64, mechanism=noise.identity(),
        participation=privacy.PoissonSampling.of(512, 50_000), noise_multiplier=1.0,
        noise_seed_is_known=True,
    )  # fmt: skip
    random = np.random.default_rng(0)
    batch = [
        random.standard_normal((512, 2048), np.float32),
        random.integers(10, size=512).astype(np.int32),
    ]
    seconds: list[float] = []
    first: list[np.ndarray] = []
    with jax.default_device(device):
        process = DPSGDProcess(SampleModel(loss), plan=plan, learning_rate=1.0)
        state = process.initialize({"kernel": np.zeros((2048, 10), np.float32)}, _SEED)
        for _ in range(options.rounds):
            began = time.perf_counter()
            state = process.next(state, batch).state
            kernel = jax.block_until_ready(state["aggregate"]["kernel"])
            seconds.append(time.perf_counter() - began)
            first = first or [np.asarray(kernel)]
    print(f"step on {device}: {_in_words(seconds)}")
    return {"update": first, "seconds": seconds, "model": sorted(kernel.devices())}


def _in_words(seconds: list[float]) -> str:
    return f"{min(seconds[1:]):.3f} s at best, {seconds[0]:.1f} s with compiling"


def _compared(what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Prints how far two devices' updates are apart; returns what is wrong."""
    import numpy as np

    apart, largest, same, count = 0.0, 0.0, 0, 0
    for one, other in zip(ours["update"], theirs["update"], strict=True):
        apart = max(apart, float(np.max(np.abs(one - other))))
        largest = max(largest, float(np.max(np.abs(one))))
        same, count = same + int((one == other).sum()), count + one.size
    faster = min(ours["seconds"][1:]) / min(theirs["seconds"][1:])
    print(
        f"{what}: {same} of {count} numbers of the update have the same bits; the "
        f"largest difference is {apart / largest:.2g} of the largest number; "
        f"{faster:.2f} times the CPU's speed"
    )
    if not apart <= _ALLOWED * largest:
        return [f"{what}: the update is another one than on the CPU"]
    return []


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
