"""How fast sentences become a token store, how much memory it takes, how fast it reads.

    python -m benchmarks.prepare_speed --data_dir=../shared/data

Prepares the R mailing lists (or synthetic sentences where they are not there), then
`--copies` of them in random order in a single row group, and a SQLite file of TFF's
layout; opens the store; fetches random users; draws a full-size run of cohorts.
"""

import dataclasses
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import programs
from pds import Group, Sampler, check_participation, linear
from stackoverflow.data.sources import SCHEMA
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore
from tff_agg import processes
from tff_agg.fields import described
from tff_agg.privacy.participation import AtMostOnce


@dataclasses.dataclass(frozen=True)
class Options:
    """What is prepared."""

    data_dir: str = described("../shared/data", "where the real data are")
    out: str = described("results/prepare_speed", "where the figures go")
    scratch: str | None = described(None, "where the stores are made meanwhile")
    copies: int = described(5, "copies of the lists in one file; 0 for none")
    sqlite_rows: int = described(200_000, "rows of the SQLite file; 0: none")
    workers: int = described(os.cpu_count() or 1, "processes", at_least=1)


@dataclasses.dataclass(frozen=True)
class Measured:
    """One preparation.

    Attributes:
      name: What was prepared.
      sentences: How many sentences.
      seconds: From the start of the command to its end.
      memory_mb: The largest sum of the memory of all its processes (shared pages are
        shared out), sampled ten times per second.
      store_mb: The size of the store.
    """

    name: str
    sentences: int
    seconds: float
    memory_mb: float
    store_mb: float


def _memory(process: psutil.Process) -> float:
    """Returns the proportional memory of a process and its children, in MB."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6


def prepare(name: str, out: str, workers: int, *arguments: str) -> Measured:
    """Runs the preparation as a user would, and watches it."""
    command = [sys.executable, "-m", "stackoverflow", "prepare", f"--out={out}"]
    began = time.monotonic()
    with processes.start(
        [*command, f"--workers={workers}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        peak = 0.0
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, _memory(watched))
            except psutil.Error:
                break
            time.sleep(0.1)
        assert process.stderr is not None
        errors = process.stderr.read()
    seconds = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"{name}: {errors.decode()[-2000:]}")
    store = TokenStore.open(out)
    size = sum(file.stat().st_size for file in pathlib.Path(out).iterdir())
    return Measured(
        name=name,
        sentences=int(
            sum(store.summary[split]["sentences"] for split in store.summary)
        ),
        seconds=seconds,
        memory_mb=peak,
        store_mb=size / 1e6,
    )


def write_copies(source: str, path: str, copies: int, seed: int = 0) -> None:
    """Writes several copies of a Parquet file in random order as one row group."""
    table = pq.read_table(source).cast(SCHEMA)
    rng = np.random.default_rng(seed)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        parts = []
        for copy in range(copies):
            order = rng.permutation(table.num_rows)
            part = table.take(pa.array(order))
            names = [f"{name}-{copy}" for name in part["client_id"].to_pylist()]
            parts.append(part.set_column(0, "client_id", pa.array(names)))
        writer.write_table(pa.concat_tables(parts), row_group_size=2**40)


def _length(data: bytes, number: int) -> bytes:
    """Returns a length-delimited field of a protocol buffer."""
    size, header = len(data), bytes([number << 3 | 2])
    while size >= 0x80:
        header += bytes([size & 0x7F | 0x80])
        size >>= 7
    return header + bytes([size]) + data


def write_sqlite(source: str, path: str, rows: int) -> None:
    """Writes the first rows of a Parquet file in TFF's SQLite layout."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
        "serialized_example_proto BLOB NOT NULL)"
    )
    connection.execute(
        "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT "
        "NULL, num_examples INTEGER NOT NULL)"
    )
    table = pq.read_table(source).slice(0, rows).to_pylist()
    for row in table:
        texts = {
            "creation_date": row["creation_date"],
            "tags": "a|b|c",
            "title": "a title of some length",
            "tokens": row["tokens"],
            "type": row["type"],
        }
        features = b"".join(
            _length(
                _length(key.encode(), 1)
                + _length(_length(_length(value.encode(), 1), 1), 2),
                1,
            )
            for key, value in texts.items()
        )
        connection.execute(
            "INSERT INTO examples VALUES (?, ?, ?)",
            (row["split"], row["client_id"], _length(features, 1)),
        )
    connection.execute(
        "INSERT INTO client_metadata SELECT client_id, split_name, COUNT(*) "
        "FROM examples GROUP BY client_id, split_name"
    )
    connection.commit()
    connection.close()


def read_speed(path: str, fetches: int = 5000) -> dict[str, float]:
    """Returns milliseconds to open a store, fetch users, and draw a sample."""
    clock = time.perf_counter
    began = clock()
    store = TokenStore.open(path)
    opened = clock() - began
    users = [int(user) for user in store.users("train")]
    chosen = random.Random(0).choices(users, k=fetches)
    times = []
    for user in chosen:
        began = clock()
        store.rows(user, seed=1, round=1)
        times.append(clock() - began)
    began = clock()
    store.sample_rows("heldout", 10_000, seed=0)
    sampled = clock() - began
    return {
        "open": 1e3 * opened,
        "fetch median": 1e3 * float(np.median(times)),
        "fetch mean": 1e3 * float(np.mean(times)),
        "fetch 99 %": 1e3 * float(np.quantile(times, 0.99)),
        "fetch largest": 1e3 * max(times),
        "sample of 10,000": 1e3 * sampled,
    }


def other_speed() -> dict[str, float]:
    """Returns seconds to make synthetic sentences and a full-size run's cohorts."""
    began = time.perf_counter()
    source = SyntheticSource()
    for shard in range(source.num_shards()):
        for _ in source.read(shard):
            pass
    made = time.perf_counter() - began
    rng = np.random.default_rng(0)
    numbers = np.arange(342_477)
    groups = (
        Group("question", numbers[rng.random(len(numbers)) < 0.8]),
        Group("answer", numbers[rng.random(len(numbers)) < 0.8]),
    )
    began = time.perf_counter()
    sampler = Sampler(groups, 100, 2000, AtMostOnce(), 1, linear(200))
    drawn = time.perf_counter() - began
    began = time.perf_counter()
    check_participation(sampler)
    return {
        "synthetic sentences (2,000 users)": made,
        "cohorts of 342,477 users × 2,000 rounds × 100": drawn,
        "check of their participation": time.perf_counter() - began,
    }


def measure(
    rlists: str | None, folder: str, copies: int, sqlite_rows: int, workers: int
) -> dict[str, Any]:
    """Returns all figures; `rlists` is None where the real sentences are not there."""
    prepared = [
        prepare("synthetic, 2,000 users", f"{folder}/synthetic", workers),
    ]
    store = f"{folder}/synthetic"
    if rlists is not None:
        store = f"{folder}/rlists"
        arguments = ("--source=parquet", f"--path={rlists}")
        prepared.append(prepare("R mailing lists", store, workers, *arguments))
        if copies:
            path = f"{folder}/copies.parquet"
            write_copies(rlists, path, copies)
            arguments = ("--source=parquet", f"--path={path}")
            name = f"{copies} copies, mixed, one row group"
            prepared.append(prepare(name, f"{folder}/copies", workers, *arguments))
        if sqlite_rows:
            path = f"{folder}/stackoverflow.sqlite"
            write_sqlite(rlists, path, sqlite_rows)
            arguments = ("--source=official", f"--path={path}")
            prepared.append(
                prepare("SQLite of TFF's layout", f"{folder}/sql", workers, *arguments)
            )
    return {
        "prepared": [dataclasses.asdict(one) for one in prepared],
        "milliseconds": read_speed(store),
        "seconds": other_speed(),
        "cores": os.cpu_count(),
        "workers": workers,
    }


def show(result: dict[str, Any]) -> None:
    """Prints the figures as tables."""
    programs.tell(
        "prepared | sentences | s | peak MB | store MB",
        "{name} | {sentences:,} | {seconds:.1f} | {memory_mb:.0f} | {store_mb:.1f}",
        result["prepared"],
    )
    for what, unit, cell in (
        ("reading a store", "milliseconds", "{value:.3f}"),
        ("making", "seconds", "{value:.2f}"),
    ):
        rows = [{"name": name, "value": value} for name, value in result[unit].items()]
        programs.tell(f"{what} | {unit}", f"{{name}} | {cell}", rows)


def main(options: Options) -> None:
    """Measures, prints and writes."""
    path = os.path.join(options.data_dir, "rlists", "rlists.parquet")
    rlists = path if os.path.exists(path) else None
    if rlists is None:
        print(f"skipped the R mailing lists: {path} is not there")
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        result = measure(
            rlists, folder, options.copies, options.sqlite_rows, options.workers
        )
    show(result)
    programs.write(options.out, "prepare_speed", result)


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
