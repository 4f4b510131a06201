"""Run folders that the tests write themselves, as training leaves them behind."""

import csv
import json

import numpy as np

from stackoverflow.data.token_store import TokenStore
from stackoverflow.model import next_word
from tff_agg import averaging, noise, privacy
from tff_agg.checkpoints import CheckpointStore

# As a run writes it: nothing is left that follows from the population.
_CONFIG = {
    "embedding_size": 4,
    "lstm_size": 5,
    "rounds": 8,
    "participation": "at_most_once",
}


def write_run(folder, store, seed, noise_multiplier=1.0, named=True, **changes):
    """Writes what training leaves behind: weights that wander, with a bias to learn.

    Without names, the weights are stored as before they had any.
    """
    config = {**_CONFIG, "noise_multiplier": noise_multiplier, "seed": seed}
    config |= {"store": store, "averager": "last", **changes}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    plan = privacy.Plan(
        clip_norm=1.0,
        cohort_size=4,
        rounds=config["rounds"],
        mechanism=noise.tree(),
        noise_multiplier=noise_multiplier,
    )
    privacy.write_report(folder, plan)
    data = TokenStore.open(store)
    sizes = next_word.ModelConfig(
        vocab_size=len(data.vocabulary.words), embedding_size=4, lstm_size=5
    )
    rng = np.random.default_rng(seed)
    theta = [np.asarray(w) for w in next_word.initial_weights(sizes, seed)]
    # The most frequent words have the lowest ids: a bias makes accuracies differ.
    theta[7] = theta[7] - 0.1 * np.arange(len(theta[7]), dtype=np.float32)
    checkpoints = CheckpointStore(folder / "checkpoints")
    state, mean = averaging.uta(3).init(theta), theta
    for t in range(config["rounds"] + 1):
        if t:
            theta = [
                (w + 0.15 * rng.standard_normal(w.shape)).astype(np.float32)
                for w in theta
            ]
            state, mean = averaging.uta(3).next(state, theta)
        items = {"iterate": theta, "aggregate": mean}
        if named:
            items = {
                key: dict(zip(next_word.WEIGHT_NAMES, value, strict=True))
                for key, value in items.items()
            }
        checkpoints.save(t, items)
    return str(folder)


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
