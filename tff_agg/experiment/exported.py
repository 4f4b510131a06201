"""A model to hand on: an aggregate in Keras' format, with what its user has to know.

```
model.keras       the aggregate, as a Keras model
model.json        where it comes from, and the guarantee it was trained under
checkpoints.npz   the weights of some checkpoints: predictions of each of them tell how
                  much the noise of training moves a prediction
…                 what the task adds, such as its vocabulary
```
"""

import dataclasses
import itertools
import json
import operator
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tff_agg import files
from tff_agg.aliases import Json
from tff_agg.recycling import uncertainty

if TYPE_CHECKING:
    import tensorflow as tf

MODEL = "model.keras"
FACTS = "model.json"
CHECKPOINTS = "checkpoints.npz"


def write(
    folder: str | os.PathLike,
    model: "tf.keras.Model",
    facts: Mapping[str, Json],
    checkpoints: Sequence[Sequence[np.ndarray]],
    texts: Mapping[str, str],
) -> None:
    """Writes the folder, as a whole or not at all.

    Args:
      folder: Must not be there.
      model: A Keras model.
      facts: JSON values that say what the model is.
      checkpoints: The weights of several checkpoints, in the order of the model's.
      texts: Further files by name.
    """
    target = pathlib.Path(folder)
    if target.exists():
        raise FileExistsError(f"{target} is there already; export to another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        model.save(new / MODEL)
        arrays = {
            f"{number}/{place}": np.asarray(weight)
            for number, weights in enumerate(checkpoints)
            for place, weight in enumerate(weights)
        }
        with files.replacing(new / CHECKPOINTS) as file:
            np.savez(file, **arrays)
        for name, text in texts.items():
            files.write_text(new / name, text)
        files.write_text(
            new / FACTS, json.dumps(dict(facts), indent=2, ensure_ascii=False) + "\n"
        )
        new.rename(target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A folder that `write` has written.

    Attributes:
      folder: Where it is.
      facts: What model.json says.

    Example:
      ExportedModel.open('models/uta').facts['method']  # 'uta:100'
    """

    folder: pathlib.Path
    facts: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "ExportedModel":
        """Opens a folder; reads no weights yet."""
        path = pathlib.Path(folder)
        try:
            facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} is no exported model: it has no {FACTS}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path / FACTS} is damaged: {error}") from error
        return cls(path, facts)

    def text(self, name: str) -> str:
        """Returns a further file of the task."""
        return (self.folder / name).read_text(encoding="utf-8")

    def model(self) -> "tf.keras.Model":
        """Loads the Keras model; imports TensorFlow."""
        import tensorflow as tf

        return tf.keras.models.load_model(self.folder / MODEL, compile=False)

    def checkpoints(self) -> list[list[np.ndarray]]:
        """Loads the weights of the stored checkpoints, oldest first."""
        with np.load(self.folder / CHECKPOINTS, allow_pickle=False) as archive:
            names = sorted(tuple(map(int, name.split("/"))) for name in archive.files)
            return [
                [archive[f"{number}/{place}"] for _, place in weights]
                for number, weights in itertools.groupby(names, operator.itemgetter(0))
            ]


def intervals(
    probabilities: Iterator[np.ndarray], times: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns from where to where the 95 % confidence interval of a mean reaches.

    Args:
      probabilities: One array for each checkpoint, at least two, all of one shape.
      times: What the reach is multiplied by, as `error_bars_times` of the facts says:
        it makes up for what the checkpoints have in common.

    Example:
      >>> low, high = intervals(iter([np.array([0.51]), np.array([0.52])]))
      >>> low.round(3), high.round(3)
      (array([0.451]), array([0.579]))
    """
    values = np.stack([np.asarray(array, np.float64) for array in probabilities])
    factor = uncertainty.interval_factor(len(values)) / 2
    mean, reach = values.mean(axis=0), times * factor * values.std(axis=0, ddof=1)
    return np.maximum(mean - reach, 0.0), np.minimum(mean + reach, 1.0)
