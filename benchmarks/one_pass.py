"""One pass over the checkpoints against the naive way: OPA and OMV for every k.

The naive way runs, for each method and each k, the last k checkpoints anew. The one
pass shares each checkpoint's forward pass between OPA, OMV and all k. Both are run on
the next-word model with random checkpoints in a real checkpoint store; their labels
must be equal.

    python -m benchmarks.one_pass --checkpoints=20 --sentences=64
"""

import collections
import dataclasses
import functools
import resource
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import programs
from stackoverflow.model import next_word
from tff_agg.checkpoints import CheckpointStore
from tff_agg.experiment.study import show
from tff_agg.fields import described
from tff_agg.recycling import outputs
from tff_agg.runtime import quiet


@dataclasses.dataclass(frozen=True)
class Study:
    """The sizes; the model's defaults are the paper's."""

    checkpoints: int = described(20, "how many checkpoints there are", at_least=2)
    ks: tuple[int, ...] = described((2, 3, 5, 10, 20), "how many to combine")
    sentences: int = described(64, "how many sentences to predict", at_least=1)
    vocab_size: int = described(10_000, "words of the vocabulary", at_least=1)
    embedding_size: int = described(96, "width of the embedding", at_least=1)
    lstm_size: int = described(670, "units of the LSTM", at_least=1)
    memory_mb: float = described(1024.0, "memory for the one pass, in MB")
    seed: int = described(0, "seeds weights and sentences")
    out: str = described("results/one_pass", "where the results go")


def make_store(
    study: Study, sizes: next_word.ModelConfig, folder: str
) -> CheckpointStore:
    """Fills a store with checkpoints that wander about random weights."""
    rng = np.random.default_rng(study.seed)
    theta = [np.asarray(w) for w in next_word.initial_weights(sizes, study.seed)]
    store = CheckpointStore(folder)
    for t in range(study.checkpoints):
        store.save(t, {"iterate": theta})
        theta = [
            w + np.float32(0.02) * rng.standard_normal(w.shape, np.float32)
            for w in theta
        ]
    return store


def random_rows(study: Study, sizes: next_word.ModelConfig) -> np.ndarray:
    """Makes rows of tokens: 5 to 20 words each."""
    rng = np.random.default_rng(study.seed)
    rows = np.zeros((study.sentences, sizes.row_length), np.int32)
    for row, length in zip(rows, rng.integers(5, 20, len(rows)), strict=True):
        row[0], row[1 + length] = sizes.bos, sizes.eos
        row[1 : 1 + length] = rng.integers(1, sizes.vocab_size + 1, length)
    return rows


def naive(load, predict, rows, newest: int, k: int, method: str) -> np.ndarray:
    """Computes OPA or OMV for one k from its definition."""
    last = [load(t) for t in range(max(0, newest - k + 1), newest + 1)]
    if method == "OPA":
        total = sum(predict(w, rows).scores.astype(np.float64) for w in last)
        return np.argmax(total, axis=1)
    votes = [predict(w, rows).scores.argmax(axis=1) for w in reversed(last)]
    winners = []
    for column in np.stack(votes, axis=1).tolist():
        counts = collections.Counter(column)
        most = max(counts.values())
        winners.append(next(label for label in column if counts[label] == most))
    return np.array(winners)


def run(study: Study) -> dict[str, Any]:
    """Times both ways and compares their labels."""
    sizes = next_word.ModelConfig(
        vocab_size=study.vocab_size,
        embedding_size=study.embedding_size,
        lstm_size=study.lstm_size,
    )
    rows, newest = random_rows(study, sizes), study.checkpoints - 1
    from stackoverflow.model import scoring

    calls = [0]
    inner = functools.partial(scoring.predictions, sizes)

    def predict(weights, part):
        calls[0] += 1
        return inner(weights, part)

    with tempfile.TemporaryDirectory() as folder:
        store = make_store(study, sizes, folder)
        load = functools.partial(store.load, name="iterate")
        inner(load(0), rows)  # Compiles.
        start = time.perf_counter()
        found = outputs.aggregate_outputs(
            load,
            store.rounds("iterate"),
            [newest],
            study.ks,
            predict,
            rows,
            classes=sizes.num_ids,
            positions_per_example=sizes.max_tokens,
            memory_budget=int(study.memory_mb * (1 << 20)),
            keep_labels=True,
        )
        one_pass = time.perf_counter() - start
        one_pass_calls, calls[0] = calls[0], 0
        start = time.perf_counter()
        differing = 0
        for (method, end, k), labels in found.labels.items():
            expected = naive(load, predict, rows, end, k, method)
            differing += int((labels != expected).sum())
        naive_seconds = time.perf_counter() - start
    return {
        "study": dataclasses.asdict(study),
        "one_pass_seconds": one_pass,
        "one_pass_forward_passes": one_pass_calls,
        "one_pass_portions": found.portions,
        "naive_seconds": naive_seconds,
        "naive_forward_passes": calls[0],
        "speed_up": naive_seconds / one_pass,
        "positions": found.total,
        "labels_compared": len(found.labels) * found.total,
        "labels_that_differ": differing,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def table(result: dict[str, Any]) -> str:
    """Formats the figures for the terminal."""
    study = result["study"]
    ways = [("one pass", "one_pass"), ("naive", "naive")]
    rows = [
        [way, f"{result[f'{key}_seconds']:.2f}", result[f"{key}_forward_passes"]]
        for way, key in ways
    ]
    title = (
        f"OPA and OMV, k = {', '.join(map(str, study['ks']))}, {result['positions']} "
        f"words, {study['vocab_size'] + 4} classes, {result['one_pass_portions']} "
        "portions"
    )
    header = ["", "seconds", "forward passes"]
    return (
        f"{show.render(show.Table(header, rows, title))}\n"
        f"{result['speed_up']:.1f} times as fast; {result['labels_that_differ']} of "
        f"{result['labels_compared']} labels differ"
    )


def main(study: Study) -> None:
    """Times, writes and prints."""
    quiet.quiet_tensorflow()
    result = run(study)
    programs.write(study.out, "one_pass", result)
    print(table(result))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Study)
