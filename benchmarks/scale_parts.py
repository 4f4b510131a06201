"""Times the parts of a round on Ray that grow with the number of lanes; prints JSON.

`python -m benchmarks.scale` runs this in a process of its own. The parts are those of
the big model's round: putting what is broadcast into the object store, a call of a
lane, fetching a lane's sum, and merging it.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable

import numpy as np

from benchmarks import programs
from benchmarks.peers import workload
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """How the parts are timed."""

    repeats: int = described(15, "how often each part is timed", at_least=1)


class _Lane:
    """Answers with arrays, as a lane does with its sum."""

    def nothing(self) -> None:
        """Shows what a call costs."""

    def total(self, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        return [np.ones(shape, np.float32) for shape in shapes]


def main(options: Options) -> None:
    """Times the parts, and prints JSON."""
    from tff_agg import runtime

    runtime.set_up_tensorflow()
    import tensorflow as tf

    from stackoverflow.model import next_word
    from tff_agg.runtime.ray.session import RaySession

    task = workload.LARGE_LSTM
    shapes = next_word.ModelConfig(
        vocab_size=task.ids - 4,
        embedding_size=task.width,
        lstm_size=task.units,
        max_tokens=task.steps,
    ).weight_shapes
    tensors = [tf.ones(shape) for shape in shapes]
    add = tf.function(lambda a, b: [x + y for x, y in zip(a, b, strict=True)])

    def best(part: Callable[[], object]) -> float:
        found = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            part()
            found.append(time.perf_counter() - start)
        return min(found)

    with contextlib.closing(RaySession(cpus=2)):
        import ray

        lane = ray.remote(_Lane).remote()
        ray.get(lane.nothing.remote())
        sums = [lane.total.remote(shapes) for _ in range(options.repeats)]
        ray.wait(sums, num_returns=len(sums))

        def fetch() -> object:
            return [tf.convert_to_tensor(x) for x in ray.get(sums.pop())]

        found = {
            "put": best(lambda: ray.put([t.numpy() for t in tensors])),
            "call": best(lambda: ray.get(lane.nothing.remote())),
            "fetch": best(fetch),
            "merge": best(lambda: add(tensors, tensors)),
        }
    print(json.dumps(found | {"bytes": 4 * sum(map(math.prod, shapes))}))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
