"""What decides the last bits of a client's work, besides the computation."""

import hashlib
import importlib.metadata
import importlib.util
import pathlib
import platform
from typing import Any

_PACKAGES = ("tensorflow", "tensorflow-federated", "numpy")


def lane_facts() -> dict[str, Any]:
    """Returns the facts in which all lanes of a round must agree with the server.

    Where they do, lanes compute the same bits wherever they are, on processors of the
    same kind.

    Example:
      lane_facts()['threads_inside_operation']  # 1
    """
    import tensorflow as tf

    from tff_agg.runtime.compile import private_api

    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "tff_agg": sources_digest("tff_agg"),
        "onednn": bool(private_api.onednn_is_on()),
        "threads_inside_operation": (
            tf.config.threading.get_intra_op_parallelism_threads()
        ),
    }


def processor() -> str:
    """Returns the processor's name: its instructions decide the order of sums."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor() or platform.machine()).strip()


def sources_digest(package: str) -> str:
    """Returns a digest of a package's Python files."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"packages: no package is called {package!r}")
    root = pathlib.Path(next(iter(spec.submodule_search_locations)))
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
