"""What the binaries show: a progress bar, tables, and errors in plain words."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stackoverflow import interruption
from stackoverflow.recording import GROUPS, WEIGHTS, Observer, Outcome
from stackoverflow.run_folder import ConfigChangedError
from tff_agg import files, privacy


def run_binary(main: Callable[[list[str]], int], define: Callable[[], None]) -> None:
    """Runs a binary: TensorFlow first, then its flags, then `main`.

    TensorFlow is imported before `app.run` because, first imported inside it, it
    compares the tensors of a traced function by identity instead of by value. It is
    set up for lanes: products of the model's shapes are a third faster with oneDNN, one
    thread inside an operation is best where every core has a lane, and memory is kept
    from round to round (see docs/performance.md).

    Ctrl-C and SIGTERM end it in order and with one line.
    """
    interruption.install()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with interruption.plain_ending(lambda: "Run the same command again."):
        from absl import app

        from tff_agg import runtime
        from tff_agg.runtime import quiet

        quiet.quiet_tensorflow()
        runtime.configure_threads()
        runtime.keep_memory()
        define()
        app.run(main)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lays rows out in columns, numbers to the right.

    Example:
      >>> print(table(['name', 'value'], [['a', 1], ['bb', 22]]))
      name  value
      ----  -----
      a         1
      bb       22
    """
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [all(_is_number(row[i]) for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def percent(share: float, digits: int = 2) -> str:
    """Writes a share as a percentage."""
    return f"{100 * share:.{digits}f}"


def plan_table(plan: privacy.Plan) -> str:
    """Lays the privacy plan out, both readings of the noise multiplier with it."""
    rows = [
        ["unit and adjacency", plan.adjacency],
        ["participation", plan.participation.describe()],
        ["mechanism", plan.mechanism.name],
        ["sensitivity", f"{plan.sensitivity.value:.4f} ({plan.sensitivity.method})"],
        ["clip norm", f"{plan.clip_norm:g}"],
        ["noise multiplier", f"{plan.noise_multiplier:.6g} of the whole sensitivity"],
        ["noise on the sum", f"standard deviation {plan.noise_stddev:.4g}"],
        ["ρ (zCDP)", f"{plan.rho:.4g}"],
        [f"ε at δ = {plan.delta:g}", f"{plan.epsilon:.4g}"],
    ]
    if plan.noise_multiplier > 0 and plan.mechanism.forest is not None:
        rows.append(
            ["if read per tree node", f"ρ would be {plan.rho_if_read_as_per_node:.4g}"]
        )
    return table(["privacy plan", ""], rows)


class ProgressBar(Observer):
    """Shows the plan, then a bar with loss, accuracy, ε, speed and time left."""

    def __init__(self, rounds: int, label: str = "", show_plan: bool = True):
        """Takes the number of rounds and what to write before the bar."""
        self._rounds, self._label, self._show_plan = rounds, label, show_plan
        self._bar: Any = None
        self._accuracy: float | None = None

    def on_plan(self, plan, cohorts) -> None:
        """Prints the guarantee before the first round."""
        if self._show_plan:
            print(plan_table(plan), flush=True)
            print(f"Clients: {cohorts.describe()}.", flush=True)

    def on_start(self, done: int, rounds: int) -> None:
        """Opens the bar where the run stands."""
        import tqdm

        if done:
            print(f"Going on after round {done}.", flush=True)
        self._bar = tqdm.tqdm(
            total=rounds, initial=done, desc=self._label or "training", unit="round",
            dynamic_ncols=True, mininterval=0.5,
        )  # fmt: skip

    def on_round(self, done: int, facts: dict[str, float]) -> None:
        """Moves the bar on."""
        self._accuracy = facts.get("validation_accuracy", self._accuracy)
        shown = {"loss": f"{facts['client_work/train/loss']:.3f}"}
        if self._accuracy is not None:
            shown["val acc"] = f"{100 * self._accuracy:.2f} %"
        shown["ε"] = f"{facts['epsilon']:.2f}"
        if dropped := facts.get("aggregator/non_finite"):
            shown["not finite"] = f"{dropped:.0f} clients"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        """Leaves the bar as it stands; what is printed next begins below it."""
        if self._bar is not None:
            self._bar.close()

    def on_end(self, outcome: Outcome) -> None:
        """Closes the bar and prints the test scores."""
        self.close()
        if not self._show_plan:
            return
        rows = [
            [weights, group, percent(found["accuracy"]),
             percent(found["accuracy_with_oov"]), f"{found['loss']:.4f}",
             f"{found['perplexity']:.1f}"]
            for weights in WEIGHTS
            for group in GROUPS
            if (found := outcome.test[weights].get(group))
        ]  # fmt: skip
        header = [
            "weights",
            "test on",
            "accuracy %",
            "with OOV %",
            "loss",
            "perplexity",
        ]
        if rows:
            print(table(header, rows))
        print(f"Everything is in {outcome.folder}", flush=True)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns errors that the user can mend into one message without a traceback."""
    from tff_agg import checkpoints, loop

    mendable = (
        ValueError,
        ConfigChangedError,
        checkpoints.StoreError,
        checkpoints.RunLockedError,
        loop.ResumeError,
        OSError,
    )
    try:
        yield
    except mendable as error:
        text = files.explain(error) if isinstance(error, OSError) else str(error)
        print(f"\nerror: {text}", file=sys.stderr, flush=True)
        sys.exit(2)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("±", " ").split()[0]) if text.strip() else None
    except ValueError:
        return False
    return True
