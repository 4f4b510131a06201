"""What is used of TFF, TensorFlow and protobuf that they do not publish.

Checked with tensorflow-federated 0.87.0 and tensorflow 2.14.1. No other file imports
such names: whoever moves to other versions looks here first.

- `compile_local_computation_to_tensorflow` makes one TensorFlow graph of a computation
  without placements.
- `deep_messages` lets protobuf read messages that are nested deeper than 100.
- `make_data_set_from_elements` makes a dataset of a list of elements, which may be
  batches of unequal sizes.
- `onednn_is_on` says whether TensorFlow uses oneDNN; it decides when it is loaded.
- `UninitializedVariable` is a variable without a value that ends with its object.
"""

import contextlib
import importlib.metadata
from collections.abc import Iterator

#: The versions that these names were checked with.
CHECKED_WITH = {"tensorflow-federated": "0.87.0", "tensorflow": "2.14.1"}

try:
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as onednn_is_on
    from tensorflow_federated.python.core.backends.mapreduce.compiler import (
        compile_local_computation_to_tensorflow,
    )
    from tensorflow_federated.python.core.impl.utils.tensorflow_utils import (
        make_data_set_from_elements,
    )
except ImportError as error:
    installed = {name: importlib.metadata.version(name) for name in CHECKED_WITH}
    raise ImportError(
        "tff_agg uses a few names that TFF and TensorFlow do not publish, and one is "
        f"missing: {error}. They were checked with {CHECKED_WITH}; installed are "
        f"{installed}. Install the versions in requirements.lock (make install)."
    ) from error

__all__ = [
    "CHECKED_WITH",
    "UninitializedVariable",
    "compile_local_computation_to_tensorflow",
    "deep_messages",
    "make_data_set_from_elements",
    "onednn_is_on",
]


@contextlib.contextmanager
def deep_messages() -> Iterator[None]:
    """Lets protobuf read deeply nested messages, in the whole process.

    TFF writes a computation as a message. Of a secure aggregator with noise, wrapped in
    another computation, it is nested deeper than the 100 that protobuf reads.
    """
    try:
        from google._upb._message import SetAllowOversizeProtos as allow
    except ImportError:  # protobuf in Python, which has no such limit
        yield
        return
    allow(True)
    try:
        yield
    finally:
        allow(False)
