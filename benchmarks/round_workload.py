"""The peers' workload and scripts, found in a folder outside the checkout."""

import importlib.util
import pathlib
from typing import Any

PEERS = {"tff": "peer_tff.py", "pfl": "peer_pfl.py"}


def default_folder() -> pathlib.Path:
    """Where the scripts are unless a flag says otherwise: next to the checkout."""
    return pathlib.Path(__file__).resolve().parents[2] / "shared" / "bench"


def load(folder: pathlib.Path) -> Any:
    """Imports `workload.py` from the folder."""
    path = folder / "workload.py"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: --bench_dir must name the folder with workload.py, "
            f"{' and '.join(PEERS.values())}"
        )
    spec = importlib.util.spec_from_file_location("round_time_workload", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
