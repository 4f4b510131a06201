"""Times the bare matrix products of a round; prints one line of JSON.

The very products that training the cohort needs, without padding, and nothing else: no
activations, softmax, updates or copies, no server. Two lanes with one thread each, as
the local runtime has. No implementation on this library of products can be faster.
`python -m benchmarks.round_time` runs this in a process of its own.
"""

import concurrent.futures
import dataclasses
import json
import time

from benchmarks import programs
from benchmarks.peers import workload
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of a round."""

    users: int = described(16, "clients in a round", at_least=1)
    sentences: int = described(64, "sentences of each client", at_least=1)
    rounds: int = described(4, "rounds; the first one warms up", at_least=1)


def main(options: Options) -> None:
    """Times the products, and prints JSON."""
    import numpy as np
    import tensorflow as tf

    from tff_agg.processes import usable_cores

    task = workload.LARGE_LSTM
    cores = usable_cores()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    width, units, ids = task.width, task.units, task.ids
    steps, batch = task.steps, task.batch
    most = steps * batch

    def noise(*shape):
        return tf.random.normal(shape)

    kernel, recurrent = noise(width, 4 * units), noise(units, 4 * units)
    transposed, dense = noise(4 * units, units), noise(units, width)
    output = noise(width, ids)
    tokens, drives = noise(most, width), noise(most, 4 * units)
    states, errors = noise(most, units), noise(most, ids)

    @tf.function(
        input_signature=[tf.TensorSpec([steps], tf.int32)],
        autograph=False,
    )
    def replay(sizes):
        count = tf.reduce_sum(sizes)
        later = tf.reduce_sum(sizes[1:])
        x, z, h, e = tokens[:count], drives[:count], states[:count], errors[:count]
        alive = tf.unstack(sizes)
        # Left factor, right factor, and which of them is transposed.
        products = [(x, kernel, "")]
        for n in alive[1:]:
            products += [(states[:n], recurrent, ""), (drives[:n], transposed, "")]
        products += [
            (h, dense, ""),
            (x, output, ""),
            (e, output, "right"),
            (x, e, "left"),
            (x, dense, "right"),
            (h, x, "left"),
            (z, kernel, "right"),
            (x, z, "left"),
            (states[:later], drives[:later], "left"),
        ]
        seen = tf.zeros([1])
        for left, right, side in products:
            # One after the other, as in training. Each goes into the result: what only
            # controls the order would be optimised away.
            with tf.control_dependencies([seen]):
                product = tf.matmul(
                    left,
                    right,
                    transpose_a=side == "left",
                    transpose_b=side == "right",
                )
                seen += tf.reshape(product, [-1])[:1]
        return seen

    batches = []
    for rows in workload.sentences(task, options.users, options.sentences):
        lengths = np.maximum((rows != 0).sum(1) - 1, 0)
        parts = np.split(lengths, range(batch, len(lengths), batch))
        alive = [[(part > step).sum() for step in range(steps)] for part in parts]
        batches.append([tf.constant(sizes, tf.int32) for sizes in alive])

    def lane(number):
        for client in batches[number::cores]:
            for sizes in client:
                replay(sizes).numpy()

    seconds = []
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        for _ in range(options.rounds):
            start = time.perf_counter()
            list(pool.map(lane, range(cores)))
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"rounds": seconds}))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
