"""Records what mechanisms draw, bit by bit, and what optimisers find.

`PYTHONPATH=. python tests/noise/golden_noise.py` writes `golden_noise.json` anew, from
the code that it finds. `test_golden_noise` compares. Record only if the noise is meant
to change: a stored run goes on under its old noise.
"""

import contextlib
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from tff_agg import noise, structure

PATH = pathlib.Path(__file__).with_suffix(".json")
ROUNDS = 12
SEEDS = {"small": (1, 2), "large": (2**64 - 1, -42)}
# More than a block of TensorFlow's, and half and double precision.
LIKE = {
    "a": np.zeros([3, 5], np.float32),
    "b": (np.zeros([70_001], np.float32), np.zeros([7], np.float16)),
    "c": np.zeros([9], np.float64),
}
MECHANISMS: dict[str, Callable[[], noise.Mechanism]] = {
    "identity": noise.identity,
    "tree": noise.tree,
    "tree completed": lambda: noise.tree(rounds=11, completion=True),
    "honaker": lambda: noise.tree("honaker", 12),
    "honaker completed": lambda: noise.tree("honaker", 11, completion=True),
    "tree restarted": lambda: noise.restart_every(noise.tree(), 5),
    "honaker restarted": lambda: noise.restart_every(noise.tree("honaker", 5, True), 5),
    "banded": lambda: noise.banded_from([2.0, 0.7, 0.3, -0.2]),
    "optimised banded": lambda: noise.banded(12, 4, separation=4, participations=2),
    "blt": lambda: noise.blt(12, 2),
    "blt restarted": lambda: noise.restart_every(
        noise.blt_from((0.9, 0.4), (0.3, 0.2)), 4
    ),
    "dense": lambda: noise.dense(12),
}


@functools.cache
def made(name: str) -> noise.Mechanism:
    return MECHANISMS[name]()


def processor() -> str:
    """Returns the kind of processor: elementary functions differ in the last bit."""
    wanted = ("vendor_id", "cpu family", "model")
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        pairs = [line.partition(":") for line in lines]
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        return " ".join(facts.get(name, "") for name in wanted)
    return "unknown"


def rounds_of(mechanism: noise.Mechanism) -> int:
    return min(ROUNDS, mechanism.max_rounds or ROUNDS)


# Each way of drawing yields the noise of round after round, as numpy.


def in_numpy(mechanism, seed) -> Iterator:
    state = mechanism.init(LIKE, seed)
    for _ in range(rounds_of(mechanism)):
        state, drawn = mechanism.next(state, LIKE)
        yield drawn


def in_eager_tensorflow(mechanism, seed) -> Iterator:
    import tensorflow as tf

    like = structure.map_leaves(tf.constant, LIKE)
    state = mechanism.init(like, seed)
    for _ in range(rounds_of(mechanism)):
        state, drawn = mechanism.next(state, like)
        yield structure.map_leaves(lambda x: x.numpy(), drawn)


def in_old_graph(mechanism, seed, *, known=True) -> Iterator:
    """Draws in a graph of TensorFlow 1, which is what TFF traces into."""
    import tensorflow as tf

    def place(leaf):
        shape = leaf.shape if known else [None] * leaf.ndim
        return tf.compat.v1.placeholder(leaf.dtype, shape)

    start = mechanism.init(structure.map_leaves(tf.constant, LIKE), seed)
    held = [np.asarray(leaf) for leaf in structure.leaves(start)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        like = structure.map_leaves(place, LIKE)
        places = [
            tf.compat.v1.placeholder(leaf.dtype, leaf.shape)
            if known or leaf.ndim == 0 or leaf.dtype == np.int64
            else place(leaf)
            for leaf in held
        ]
        after, drawn = mechanism.next(structure.pack(start, places), like)
        fetched = structure.leaves(after), structure.leaves(drawn)
        given = dict(zip(structure.leaves(like), structure.leaves(LIKE), strict=True))
        for _ in range(rounds_of(mechanism)):
            feed = given | dict(zip(places, held, strict=True))
            held, found = session.run(fetched, feed)
            yield structure.pack(LIKE, found)


def in_old_graph_of_unknown_shapes(mechanism, seed) -> Iterator:
    yield from in_old_graph(mechanism, seed, known=False)


def in_jax(mechanism, seed, *, compiled=False, wide=False) -> Iterator:
    import jax
    from jax.experimental import enable_x64

    with enable_x64(wide):
        like = structure.map_leaves(jax.numpy.asarray, LIKE)
        state = mechanism.init(like, seed)
        step = jax.jit(mechanism.next) if compiled else mechanism.next
        for _ in range(rounds_of(mechanism)):
            state, drawn = step(state, like)
            yield structure.map_leaves(np.asarray, drawn)


def in_compiled_jax(mechanism, seed) -> Iterator:
    yield from in_jax(mechanism, seed, compiled=True)


def in_wide_jax(mechanism, seed) -> Iterator:
    yield from in_jax(mechanism, seed, wide=True)


def in_compiled_wide_jax(mechanism, seed) -> Iterator:
    yield from in_jax(mechanism, seed, compiled=True, wide=True)


WAYS: dict[str, Callable[..., Iterator]] = {
    "numpy": in_numpy,
    "tensorflow": in_eager_tensorflow,
    "tensorflow 1 graph": in_old_graph,
    "tensorflow unknown shapes": in_old_graph_of_unknown_shapes,
    "jax": in_jax,
    "jax compiled": in_compiled_jax,
    "jax 64 bits": in_wide_jax,
    "jax 64 bits compiled": in_compiled_wide_jax,
}


# Compiling is what takes the time. A mechanism is the same code in every library, so
# all are drawn in numpy, and elsewhere one of each kind.
SELDOM = {
    "tensorflow 1 graph": tuple(
        name for name in MECHANISMS if name not in ("honaker", "honaker restarted")
    ),
    "tensorflow": (
        "identity", "tree completed", "honaker completed", "banded", "blt restarted"
    ),
    "tensorflow unknown shapes": ("identity", "dense"),
    "jax": ("identity", "blt"),
    "jax compiled": ("identity", "tree completed", "banded", "blt restarted"),
    "jax 64 bits": ("identity", "blt"),
    "jax 64 bits compiled": ("identity", "blt"),
}  # fmt: skip
# What is compiled is compiled for one seed: that is an input of what comes out.
COMPILED = (
    "tensorflow 1 graph", "tensorflow unknown shapes", "jax compiled",
    "jax 64 bits compiled",
)  # fmt: skip
CASES = [
    (name, way)
    for name in MECHANISMS
    for way in WAYS
    if name in SELDOM.get(way, MECHANISMS)
]


def seeds_of(way: str) -> dict[str, tuple[int, int]]:
    return {"large": SEEDS["large"]} if way in COMPILED else SEEDS


def drawn(name: str, way: str) -> dict:
    """Returns a digest of all bits of all rounds, and a few numbers to compare."""
    mechanism, found = made(name), {}
    for seed_name, seed in seeds_of(way).items():
        digest, sample = hashlib.sha256(), []
        for value in WAYS[way](mechanism, seed):
            flat = structure.leaves(value)
            for leaf in flat:
                digest.update(np.ascontiguousarray(leaf).tobytes())
            sample += [float(f"{flat[1][-1]:.8g}"), float(f"{flat[3][-1]:.8g}")]
        found[seed_name] = {"sha256": digest.hexdigest(), "sample": sample}
    return found


def coefficients() -> dict:
    """Returns what the optimisers find."""
    schema = {"separation": 342, "participations": 6}
    momentum = noise.workloads.momentum(0.95)
    blt = noise.blt(2000, 3, workload=momentum, **schema)
    banded = noise.banded(2000, 16, workload=momentum, **schema)
    dense = noise.dense(64, workload=noise.workloads.momentum(0.9))
    return {
        "blt": [blt.parameters["decays"], blt.parameters["weights"]],
        "banded": banded.parameters["coefficients"],
        "square root": noise.banded_square_root(16, momentum).matrix(16)[-1].tolist(),
        "dense": noise.dense(64).matrix(64)[-1].tolist(),
        "dense with momentum": dense.matrix(64)[-1].tolist(),
    }


def record() -> dict:
    return {
        "processor": processor(),
        "coefficients": coefficients(),
        "drawn": {f"{name}, {way}": drawn(name, way) for name, way in CASES},
    }


if __name__ == "__main__":
    text = json.dumps(record())
    # A line for each case.
    PATH.write_text(text.replace('"sha256"', '\n"sha256"') + "\n")
