"""What a run is: everything that its noise may be added to once only.

The noise of a round is a function of the secret seed and the round. Computed again with
other clients, other data, another plan or other code, a round is released twice under
one noise, and the difference of the two releases is free of it. So a run has an
identity: it is stored before the first noise is drawn, and a run goes on only as what
it was begun as.

Two kinds of facts are told apart. The identity proper may never change. The
surroundings (library versions, lanes, devices) change the last bits of a round, not its
meaning: they may change between rounds, but not where a round is computed again.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agg import digests
from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment.build.process import NotChecked
from tff_agg.experiment.run.ledger import ResumeError
from tff_agg.runtime.lanes.facts import processor, sources_digest

# Calibrated noise and optimised mechanisms differ in their last digits from one build
# of the numerical libraries to the next; a difference up to this share is none.
_SAME = 1e-9
_PACKAGES = ("tensorflow", "tensorflow-federated", "numpy", "scipy", "jax")


class IdentityError(ResumeError):
    """A run is not what it was begun as."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What a run was begun as. There are no defaults for what may not be forgotten.

    Attributes:
      sampler: A digest of the cohorts of all rounds: `cohorts_digest`, or the
        `fingerprint` of a `pds.Sampler`. It must follow from the cohorts themselves,
        so that it changes when the sampler's code draws others.
      data: A digest of all clients' data.
      model: What the process does not know of itself, as JSON values: the
        architecture, the initial weights, a `Trainer`'s settings.
      process: What the process says of itself (plan with the mechanism's parameters,
        optimisers, averager), as JSON values. The training loop fills it in from
        `process.description`; give it for processes that have none.

    Each part may be a `NotChecked`.

    Example:
      Identity(sampler=sampler.fingerprint, data=store.fingerprint,
               model={'lstm_size': 670, 'seed': 1})
    """

    sampler: str | NotChecked
    data: str | NotChecked
    model: Json | NotChecked
    process: Mapping[str, Json] | NotChecked | None = None

    def __post_init__(self):
        for name in ("sampler", "data"):
            value = getattr(self, name)
            if isinstance(value, NotChecked) or (isinstance(value, str) and value):
                continue
            raise TypeError(
                f"{name} must be a digest (a string) or NotChecked(reason); got "
                f"{value!r}"
            )
        if self.model is None or self.model == "":
            raise TypeError(
                f"model must describe the model or be NotChecked(reason); got "
                f"{self.model!r}"
            )

    def facts(self, process: object) -> JsonObject:
        """Returns the identity of a run of `process`, as JSON values.

        Raises:
          TypeError: The process does not describe itself and `process` was not given,
            or a part is not made of JSON values.
        """
        described = self.process
        if described is None:
            described = getattr(process, "description", None)
        if described is None:
            raise TypeError(
                "this process does not describe itself (those of build_dp_ftrl_process "
                "do): give identity.process, its plan, optimisers and averager as JSON "
                "values, or NotChecked(reason)"
            )
        parts = {
            "process": described,
            "model": self.model,
            "sampler": self.sampler,
            "data": self.data,
        }
        return {name: _plain(name, value) for name, value in parts.items()}


def _plain(name: str, value: object) -> Json:
    """Returns a value as JSON reads it back."""
    if isinstance(value, NotChecked):
        return {"not checked": value.reason}
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"identity.{name} must be made of JSON values: {error}") from (
            error
        )


def differences(saved: Json, wanted: Json, where: str = "") -> list[str]:
    """Returns a line for each field in which two nested JSON values differ.

    Numbers that agree to nine digits are the same: see the top of this file.

    Example:
      >>> differences({'a': {'b': 1}}, {'a': {'b': 2}})
      ['a.b: was 1, is now 2']
    """
    if isinstance(saved, Mapping) and isinstance(wanted, Mapping):
        lines = []
        for key in sorted(saved.keys() | wanted.keys()):
            inside = f"{where}.{key}" if where else str(key)
            lines += differences(
                saved.get(key, "(absent)"), wanted.get(key, "(absent)"), inside
            )
        return lines
    if isinstance(saved, list) and isinstance(wanted, list):
        if len(saved) == len(wanted):
            pairs = enumerate(zip(saved, wanted, strict=True))
            return [
                line
                for i, (a, b) in pairs
                for line in differences(a, b, f"{where}[{i}]")
            ]
    elif _same(saved, wanted):
        return []
    return [f"{where}: was {_short(saved)}, is now {_short(wanted)}"]


def _same(saved: Any, wanted: Any) -> bool:
    numbers = [
        isinstance(x, int | float) and not isinstance(x, bool) for x in (saved, wanted)
    ]
    if all(numbers) and isinstance(saved, float) | isinstance(wanted, float):
        return math.isclose(saved, wanted, rel_tol=_SAME)
    return type(saved) is type(wanted) and saved == wanted


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def ids_digest(ids: Sequence[object]) -> str:
    """Returns a digest of a cohort's client ids, in order."""
    text = "\n".join(json.dumps(str(i)) for i in np.asarray(ids, object).tolist())
    return digests.of_bytes(text.encode())


def surroundings(packages: Sequence[str] = ("tff_agg",)) -> JsonObject:
    """Returns what decides the last bits of a round besides the run's identity.

    These are the versions of libraries, the processor, and the lanes and devices of
    the runtime that is set now.

    Args:
      packages: Names of importable packages whose source files are digested.

    Example:
      surroundings()['lanes']  # ['/device:CPU:0', '/device:CPU:0']
    """
    import tensorflow as tf
    import tensorflow_federated as tff

    context = tff.framework.get_context_stack().current
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    lanes = getattr(context, "lanes", None)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
        "threads_inside_operation": threads,
        "runtime": getattr(context, "same_bits_as", type(context).__name__),
        "lanes": None if lanes is None else [lane.device for lane in lanes],
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "sources": {name: sources_digest(name) for name in packages},
    }
