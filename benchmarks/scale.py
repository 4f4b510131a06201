"""Compares lanes on Ray with local lanes, and says what more lanes would cost.

    python -m benchmarks.scale

- The big workload (4,050,748-parameter LSTM, 16 users × 64 sentences) and the small one
  (40,000 parameters, 100 users × 8 sentences, in groups), two lanes each, in turns,
  each time in a fresh process; a process's first round, which compiles, does not count.
- Bytes moved: what a round hands to Ray, and what crosses between two nodes of Ray on
  this machine (the loopback interface's counter), against the least possible.
- Seconds per lane for clients of unequal sizes, assigned longest first.
- A model of the cost of 10, 100 and 1,000 lanes from measured parts and a bandwidth.

The last line is `ray vs local: N.NNx` for the big workload, the time of ray over the
time of local: the best round of each.
"""

import json
import math
import pathlib
import statistics
import sys
from typing import Any, NamedTuple

from absl import app

from benchmarks import own_flags, turns

# Flags of its own: tests import this module beside others that have some.
_FLAGS = own_flags.OwnFlags()
_LANES = _FLAGS.integer("lanes", 2, "Lanes of both.", 1)
_TURNS = _FLAGS.integer("turns", 1, "Turns.", 1)
_ROUNDS = _FLAGS.integer("rounds", 5, "Rounds per turn.", 2)
_PARTS = _FLAGS.list(
    "parts", ["big", "small", "bytes", "lanes", "model"], "What to run."
)  # fmt: skip
_GBITS = _FLAGS.float("gigabits", 10.0, "The model's bandwidth of a machine.")
_PER_NODE = _FLAGS.integer("lanes_per_node", 16, "The model's lanes of a machine.", 1)
_OUT = _FLAGS.string("out", "results/scale", "Folder for JSON.")

RUNTIMES = ("local", "ray")
_MODULES = {"big": "round_local", "small": "small_local"}


class Parts(NamedTuple):
    """The measured parts of a round, in seconds and bytes.

    Attributes:
      put: Putting what is broadcast into the object store.
      call: A call of a lane, and its answer.
      fetch: Reading a sum out of the object store of the same machine.
      merge: Adding a sum to another.
      bytes: Of what is broadcast; a sum has as many.
      client: A client's work, in its lane.
      server: The server's part of a round.
    """

    put: float
    call: float
    fetch: float
    merge: float
    bytes: int
    client: float
    server: float


class Cost(NamedTuple):
    """Seconds of a round, part by part."""

    work: float
    broadcast: float
    sums: float
    server: float

    @property
    def total(self) -> float:
        """All parts, one after the other: none of them overlap here."""
        return sum(self)


def cost(
    parts: Parts, lanes: int, clients: int, bandwidth: float, lanes_per_node: int
) -> Cost:
    """Says what a round costs with so many lanes.

    The server's machine sends to each other one and takes in each lane's sum, through a
    link of `bandwidth` bytes per second. Lanes of equal length.

    Example:
      >>> parts = Parts(0.1, 0.001, 0.01, 0.01, 10**6, 1.0, 0.5)
      >>> cost(parts, 10, 100, 1e9, 16).work
      10.0
    """
    nodes = math.ceil(lanes / lanes_per_node)
    wire = parts.bytes / bandwidth
    return Cost(
        work=math.ceil(clients / lanes) * parts.client,
        broadcast=parts.put + nodes * wire + lanes * parts.call,
        sums=lanes * (wire + parts.fetch + parts.merge),
        server=parts.server,
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    result: dict[str, Any] = {**turns.circumstances(), "lanes": _LANES.value}
    for name in ("small", "big"):
        if name in _PARTS.value:
            result[name] = _compare(name)
    if "bytes" in _PARTS.value:
        result["bytes"] = _bytes()
    if "lanes" in _PARTS.value:
        result["uneven"] = _uneven()
    if "model" in _PARTS.value and "big" in result:
        result["model"] = _model(result["big"])
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "scale.json").write_text(json.dumps(result, indent=2) + "\n")
    for name in ("small", "big"):
        if name in result:
            prefix = "" if name == "big" else "small: "
            print(f"{prefix}ray vs local: {result[name]['ratio']:.2f}x")


def _run(name: str, runtime: str, *more: str) -> dict[str, Any]:
    words = [f"--runtime={runtime}", f"--lanes={_LANES.value}"]
    command = [sys.executable, "-m", f"benchmarks.{_MODULES[name]}", *words, *more]
    return turns.run([*command, f"--rounds={_ROUNDS.value}"], onednn=True)


def _compare(name: str) -> dict[str, Any]:
    """Runs both by turns; the best round of each counts."""
    found: dict[str, Any] = {runtime: [] for runtime in RUNTIMES}
    for _ in range(_TURNS.value):
        for runtime in RUNTIMES:
            found[runtime].append(_run(name, runtime))
    print(f"\n{name} workload, {_LANES.value} lanes", flush=True)
    print(f"{'':8}{'best s':>9}{'median s':>10}   rounds")
    best = {}
    for runtime in RUNTIMES:
        times = [s for one in found[runtime] for s in _rounds(name, one)]
        best[runtime] = min(times)
        shown = " ".join(f"{s:.3f}" for s in times)
        median = statistics.median(times)
        print(f"{runtime:8}{best[runtime]:9.3f}{median:10.3f}   {shown}", flush=True)
    return {"runs": found, "ratio": best["ray"] / best["local"]}


def _rounds(name: str, one: dict[str, Any]) -> list[float]:
    rounds = one["rounds"] if name == "big" else one["grouped"]["rounds"]
    return rounds[1:]


def _bytes() -> dict[str, Any]:
    """Measures what a round moves between a server's node and one with all lanes."""
    from ray import cluster_utils

    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=_LANES.value)
        one = _run("big", "ray", f"--address={cluster.address}")
    finally:
        cluster.shutdown()
    model, traffic = one["model_bytes"], one["traffic"]
    sums = list(traffic["sums"].values())
    least = model + len(sums) * model
    rows = [
        ("broadcast, once per node", traffic["broadcast"], model),
        *((f"sum of lane {i}", size, model) for i, size in enumerate(sums)),
        ("clients' data, all lanes", sum(traffic["data"].values()), 0),
        ("carried between the nodes", min(one["loopback_bytes"][1:]), least),
    ]
    print(f"\n{'bytes of a round':28}{'moved':>14}{'least':>14}")
    for label, moved, possible in rows:
        share = f"{moved / possible:8.3f}x" if possible else ""
        print(f"{label:28}{moved:14,}{possible:14,}{share}", flush=True)
    return {"rows": rows, "model_bytes": model}


def _uneven() -> dict[str, Any]:
    """Shows how even lanes are with clients of unequal sizes."""
    one = _run("big", "ray", "--uneven")
    print("\nclients of 1 to 64 sentences, longest first to the least busy lane")
    print(f"{'lane':>6}{'clients':>9}{'seconds':>9}{'share':>7}")
    for row in one["lanes"]:
        print(
            f"{row['lane']:6}{row['clients']:9}{row['seconds']:9.2f}{row['share']:7.0%}"
        )
    print(f"busiest lane over the mean: {one['imbalance']:.3f}", flush=True)
    return {key: one[key] for key in ("lanes", "imbalance")}


def _model(big: dict[str, Any]) -> dict[str, Any]:
    """Prints what a round would take with more lanes."""
    timed = turns.run([sys.executable, "-m", "benchmarks.scale_parts"], onednn=True)
    runs = big["runs"]["ray"]
    lanes = [row for one in runs for row in one["lanes"]]
    parts = Parts(
        **timed,
        client=sum(r["seconds"] for r in lanes) / sum(r["clients"] for r in lanes),
        server=min(s for one in runs for s in one["server"][1:]),
    )
    print(
        "\nmeasured parts: "
        + ", ".join(_shown(*item) for item in parts._asdict().items())
    )
    bandwidth = _GBITS.value * 1e9 / 8
    print(
        f"model: {_GBITS.value:g} Gbit/s, {_PER_NODE.value} lanes per machine, parts "
        "one after the other"
    )
    print(f"{'lanes':>6}{'clients':>9}{'work':>9}{'broadcast':>11}{'sums':>9}{'server':>9}"
          f"{'total s':>9}{'at work':>9}")  # fmt: skip
    found = []
    for clients in (100, 1000, 10_000):
        for count in (10, 100, 1000):
            if count > clients:
                continue
            one = cost(parts, count, clients, bandwidth, _PER_NODE.value)
            print(
                f"{count:6,}{clients:9,}{one.work:9.2f}{one.broadcast:11.3f}"
                f"{one.sums:9.2f}{one.server:9.2f}{one.total:9.2f}"
                f"{one.work / one.total:9.0%}"
            )
            found.append({"lanes": count, "clients": clients, **one._asdict()})
    return {"parts": parts._asdict(), "table": found}


def _shown(name: str, value: float) -> str:
    return f"{name} {value:,}" if name == "bytes" else f"{name} {value * 1000:.2f} ms"


if __name__ == "__main__":
    _FLAGS.run(main)
