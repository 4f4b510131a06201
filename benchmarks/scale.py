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

import dataclasses
import math
import statistics
import sys
from typing import Any, NamedTuple

from benchmarks import programs, turns
from tff_agg.fields import described

PARTS = ("big", "small", "bytes", "lanes", "model")
RUNTIMES = ("local", "ray")
_MODULES = {"big": "round_local", "small": "small_local"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared."""

    lanes: int = described(2, "lanes of both", at_least=1)
    turns: int = described(1, "turns", at_least=1)
    rounds: int = described(5, "rounds per turn", at_least=2)
    parts: tuple[str, ...] = described(PARTS, "what to run", PARTS)
    gigabits: float = described(10.0, "the model's bandwidth of a machine")
    lanes_per_node: int = described(16, "the model's lanes of a machine", at_least=1)
    out: str = described("results/scale", "folder for JSON")


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


def main(options: Options) -> None:
    """Compares, prints and writes."""
    result: dict[str, Any] = {**turns.circumstances(), "lanes": options.lanes}
    for name in ("small", "big"):
        if name in options.parts:
            result[name] = _compare(options, name)
    if "bytes" in options.parts:
        result["bytes"] = _bytes(options)
    if "lanes" in options.parts:
        result["uneven"] = _uneven(options)
    if "model" in options.parts and "big" in result:
        result["model"] = _model(options, result["big"])
    programs.write(options.out, "scale", result)
    for name in ("small", "big"):
        if name in result:
            prefix = "" if name == "big" else "small: "
            print(f"{prefix}ray vs local: {result[name]['ratio']:.2f}x")


def _run(options: Options, name: str, runtime: str, *more: str) -> dict[str, Any]:
    words = [f"--runtime={runtime}", f"--lanes={options.lanes}"]
    command = [sys.executable, "-m", f"benchmarks.{_MODULES[name]}", *words, *more]
    return turns.run([*command, f"--rounds={options.rounds}"], onednn=True)


def _compare(options: Options, name: str) -> dict[str, Any]:
    """Runs both by turns; the best round of each counts."""
    found: dict[str, Any] = {runtime: [] for runtime in RUNTIMES}
    for _ in range(options.turns):
        for runtime in RUNTIMES:
            found[runtime].append(_run(options, name, runtime))
    times = {
        runtime: [s for one in several for s in _rounds(name, one)]
        for runtime, several in found.items()
    }
    programs.tell(
        " | best s | median s | rounds",
        "{runtime} | {best:.3f} | {median:.3f} | {rounds}",
        [
            {
                "runtime": runtime,
                "best": min(seconds),
                "median": statistics.median(seconds),
                "rounds": " ".join(f"{s:.3f}" for s in seconds),
            }
            for runtime, seconds in times.items()
        ],
        f"{name} workload, {options.lanes} lanes",
    )
    return {"runs": found, "ratio": min(times["ray"]) / min(times["local"])}


def _rounds(name: str, one: dict[str, Any]) -> list[float]:
    rounds = one["rounds"] if name == "big" else one["grouped"]["rounds"]
    return rounds[1:]


def _bytes(options: Options) -> dict[str, Any]:
    """Measures what a round moves between a server's node and one with all lanes."""
    from ray import cluster_utils

    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=options.lanes)
        one = _run(options, "big", "ray", f"--address={cluster.address}")
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
    programs.tell(
        "bytes of a round | moved | least | share",
        "{label} | {moved:,} | {least:,} | {share}",
        [
            {"label": label, "moved": moved, "least": least,
             "share": f"{moved / least:.3f}" if least else ""}
            for label, moved, least in rows
        ],
    )  # fmt: skip
    return {"rows": rows, "model_bytes": model}


def _uneven(options: Options) -> dict[str, Any]:
    """Shows how even lanes are with clients of unequal sizes."""
    one = _run(options, "big", "ray", "--uneven")
    programs.tell(
        "lane | clients | seconds | share",
        "{lane} | {clients} | {seconds:.2f} | {share:.0%}",
        one["lanes"],
        "clients of 1 to 64 sentences, longest first to the least busy lane",
    )
    print(f"busiest lane over the mean: {one['imbalance']:.3f}", flush=True)
    return {key: one[key] for key in ("lanes", "imbalance")}


def _model(options: Options, big: dict[str, Any]) -> dict[str, Any]:
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
    bandwidth = options.gigabits * 1e9 / 8
    print(
        f"model: {options.gigabits:g} Gbit/s, {options.lanes_per_node} lanes per "
        "machine, parts one after the other"
    )
    rows = [
        {"lanes": count, "clients": clients, "total": one.total, **one._asdict()}
        for clients in (100, 1000, 10_000)
        for count in (10, 100, 1000)
        if count <= clients
        for one in [cost(parts, count, clients, bandwidth, options.lanes_per_node)]
    ]
    programs.tell(
        "lanes | clients | work | broadcast | sums | server | total s | at work",
        "{lanes:,} | {clients:,} | {work:.2f} | {broadcast:.3f} | {sums:.2f} | "
        "{server:.2f} | {total:.2f} | {share:.0%}",
        [{**row, "share": row["work"] / row["total"]} for row in rows],
    )
    return {"parts": parts._asdict(), "table": rows}


def _shown(name: str, value: float) -> str:
    return f"{name} {value:,}" if name == "bytes" else f"{name} {value * 1000:.2f} ms"


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
