"""What commands show: a progress bar, tables, and errors in plain words."""

import contextlib
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_agg import files, privacy
from tff_agg.experiment import progress
from tff_agg.experiment.run.recording import Observer, Outcome, below_trivial
from tff_agg.experiment.study import show
from tff_agg.recycling import series
from tff_agg.recycling.metrics import Metric
from tff_agg.runtime.lanes.times import LaneTime


def lane_table(rows: Sequence[LaneTime]) -> str:
    """Lays out how long each lane was at work; the shares show the imbalance."""
    cells = [
        [row.lane, row.clients, f"{row.seconds:.1f}", f"{100 * row.share:.0f}"]
        for row in rows
    ]
    header = ["lane", "clients", "seconds", "% of the busiest"]
    return show.render(show.Table(header, cells))


def plan_table(plan: privacy.Plan) -> str:
    """Lays the privacy plan out, both readings of the noise multiplier with it."""
    facts = plan.to_json()
    kind = "exact" if facts["sensitivity_is_exact"] else "upper bound"
    sensitivity = f"{kind}; {facts['sensitivity_method']}"
    rows = [
        ["unit and adjacency", plan.adjacency],
        ["participation", plan.participation.describe()],
        ["mechanism", str(facts["mechanism"])],
        ["sensitivity", f"{facts['sensitivity']:.4f} ({sensitivity})"],
        ["clip norm", f"{plan.clip_norm:g}"],
        ["noise multiplier", f"{plan.noise_multiplier:.6g} of the whole sensitivity"],
        ["noise on the sum", f"standard deviation {plan.noise_stddev:.4g}"],
    ]
    rows += [
        [f"ρ of the {release.name}", f"{release.rho:.4g}, δ = {release.delta:g}"]
        for release in plan.releases
    ]
    rows += [
        ["ρ (zCDP)", plan.no_guarantee or f"{plan.rho:.4g}"],
        [f"ε at δ = {plan.delta:g}", plan.no_guarantee or f"{plan.epsilon:.4g}"],
    ]
    if plan.mechanism.forest is not None and not plan.no_guarantee:
        per_node = facts["rho_if_read_as_per_node_multiplier"]
        rows.append(["if read per tree node", f"ρ would be {per_node:.4g}"])
    return show.render(show.Table(["privacy plan", ""], rows))


def test_table(tested: Mapping[str, Any], metrics: Sequence[Metric]) -> show.Table:
    """Lays test scores out, a line for each kind of weights and group of examples."""
    rows = [
        [weights, group, *(metric.show(scores[metric.name]) for metric in metrics)]
        for weights, by_group in series.apart(tested).items()
        for group, scores in by_group.items()
    ]
    return show.Table(["weights", "test on", *(m.label for m in metrics)], rows)


def print_wrapped(lines: Sequence[str]) -> None:
    """Prints sentences, each from the start of a line."""
    for line in lines:
        print(textwrap.fill(line, show.WIDTH, subsequent_indent="  "), flush=True)


class TrainingBar(Observer):
    """Shows the plan, then a bar with loss, accuracy, ε, speed and time left."""

    def __init__(self, metrics: Sequence[Metric]):
        """Takes what models are judged by."""
        self._metrics = metrics
        self._bar: Any = None
        self._value: float | None = None

    def on_plan(self, plan, cohorts) -> None:
        """Prints the guarantee before the first round."""
        print(plan_table(plan), flush=True)
        print_wrapped([f"Clients: {cohorts.describe()}."])

    def on_signal(self, lines) -> None:
        """Prints whether anything is to be expected of the run."""
        print_wrapped(lines)

    def on_disk(self, disk) -> None:
        """Prints what the run will take, and warns where there is too little."""
        print(f"Disk: {disk.describe()}.", flush=True)
        if not disk.fits:
            print("Warning: the disk may fill before the run ends.", flush=True)

    def on_start(self, done: int, rounds: int) -> None:
        """Opens the bar where the run stands."""
        if done == rounds:
            print(f"All {rounds} rounds are done.", flush=True)
        elif done:
            print(f"Going on after round {done}.", flush=True)
        self._bar = progress.open_bar("training", rounds, initial=done, unit="round")

    def on_round(self, done: int, facts: dict[str, float]) -> None:
        """Moves the bar on."""
        self._value = facts.get("validation", self._value)
        shown = {}
        for name in ("client_work/train/loss", "train/loss"):
            if (loss := facts.get(name)) is not None:
                shown["loss"] = f"{loss:.3f}"
        if self._value is not None:
            metric = self._metrics[0]
            shown[f"validation {metric.label}"] = metric.show(self._value)
        spent = facts.get("epsilon_so_far")
        shown["ε so far"] = "none" if spent is None else f"{spent:.2f}"
        if dropped := facts.get("aggregator/non_finite"):
            shown["not finite"] = f"{dropped:.0f} of {facts['clients']:.0f}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        """Leaves the bar as it stands; what is printed next begins below it."""
        if self._bar is not None:
            self._bar.close()

    def on_end(self, outcome: Outcome) -> None:
        """Closes the bar and prints the test scores."""
        self.close()
        tested = test_table(outcome.test, self._metrics)
        if tested.rows:
            print(show.render(tested))
        if text := below_trivial(outcome.test, self._metrics):
            print_wrapped([text])
        print(f"Everything is in {outcome.folder}", flush=True)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns errors that the user can mend into one message without a traceback."""
    from tff_agg import checkpoints
    from tff_agg.experiment.run import loop
    from tff_agg.experiment.study.declare import TrialsFailedError

    mendable = (
        ValueError,
        checkpoints.StoreError,
        checkpoints.RunLockedError,
        loop.ResumeError,
        TrialsFailedError,
        OSError,
    )
    try:
        yield
    except mendable as error:
        text = files.explain(error) if isinstance(error, OSError) else str(error)
        print(f"\nerror: {show.visible(text)}", file=sys.stderr, flush=True)
        sys.exit(2)
