"""Ways to use the checkpoints of one run at inference, each named by a short text.

| text       | what it is                                                            |
|------------|-----------------------------------------------------------------------|
| `last`     | the last checkpoint                                                   |
| `uta:k`    | UTA_inf: the mean of the last k checkpoints                           |
| `ema:β`    | EMA_inf: a moving average, β the weight of the old one, warmed up     |
| `ema_cold:β`   | the same without a warm-up                                        |
| `ema_printed:β` | β the weight of the newest checkpoint, warmed up: equation (1)   |
| `ema_weight:β` | the same without a warm-up                                        |
| `pda:γ`    | polynomial-decay averaging                                            |
| `opa:k`    | the mean of the last k predicted distributions                        |
| `omv:k`    | the majority of the last k predicted labels                           |

`uta:10@50` takes ten checkpoints that are 50 rounds apart; `opa` and `omv` can, too.
All of it is post-processing of what private training has released, and costs no
privacy.

A new method is a function and a line of `KINDS`: an averager that is folded over all
checkpoints, or nothing but a name for the mean of the last k.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from tff_agg import averaging, checks
from tff_agg.aliases import Weights
from tff_agg.averaging import Averager
from tff_agg.recycling import outputs as outputs_lib
from tff_agg.recycling import windows
from tff_agg.recycling.metrics import OutputJudge, Values
from tff_agg.recycling.outputs import Examples, Predict
from tff_agg.recycling.series import Series

_log = logging.getLogger(__name__)

#: By the group of examples, the values of the metrics; 'all' is one of the groups.
Grouped = Mapping[str, Values]
Progress = Callable[[str, int, int], None]


def count(text: str) -> int:
    """Reads a number of checkpoints."""
    return checks.whole("checkpoints", int(text))


class Kind(NamedTuple):
    """What the methods of one name have in common.

    Attributes:
      title: What tables call it.
      symbol: What its parameter is called, in pictures.
      number: Reads the parameter; None where there is none.
      averager: Folded over all checkpoints, by the parameter.
      combine: 'scores' or 'labels': what is combined are the outputs of the last k
        checkpoints. With neither, it is the mean of the last k.
    """

    title: str
    symbol: str = ""
    number: Callable[[str], float] | None = None
    averager: Callable[[Any], Averager] | None = None
    combine: Literal["scores", "labels"] | None = None

    @property
    def is_window(self) -> bool:
        """Whether it uses the last k checkpoints, and no others."""
        return self.number is count


KINDS: dict[str, Kind] = {
    "last": Kind("last"),
    "uta": Kind("UTA_inf", "k", count),
    "ema": Kind("EMA_inf", "β", float, lambda b: averaging.ema(decay=b, warm_up=True)),
    "ema_cold": Kind("EMA_inf cold", "β", float, lambda b: averaging.ema(decay=b)),
    "ema_printed": Kind(
        "EMA_inf printed", "β", float, lambda b: averaging.ema(weight=b, warm_up=True)
    ),
    "ema_weight": Kind("EMA_inf weight", "β", float, lambda b: averaging.ema(weight=b)),
    "pda": Kind("PDA", "γ", float, averaging.pda),
    "opa": Kind("OPA", "k", count, combine="scores"),
    "omv": Kind("OMV", "k", count, combine="labels"),
}
_OF_OUTPUTS = {"scores": "OPA", "labels": "OMV"}


@dataclasses.dataclass(frozen=True, order=True)
class Method:
    """A way to use checkpoints.

    Attributes:
      kind: One of `KINDS`.
      value: k, β or γ; None for 'last'.
      apart: The rounds between two checkpoints of a window.

    Example:
      >>> Method.parse('uta:100')
      Method(kind='uta', value=100, apart=1)
      >>> str(Method('ema', 0.95)), Method.parse('opa:10@50').title
      ('ema:0.95', 'OPA 10@50')
    """

    kind: str
    value: float | None = None
    apart: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads one; the error lists all kinds and shows an example."""
        kind, colon, given = text.strip().partition(":")
        number, at, apart = given.partition("@")
        wrong = (
            f"method={text!r} must be one of {_FORMS}; such as uta:100, ema:0.95 or "
            "opa:10@50"
        )
        known = KINDS.get(kind)
        if known is None or bool(colon) != (known.number is not None):
            raise ValueError(wrong)
        if known.number is None:
            return cls(kind)
        try:
            method = cls(kind, known.number(number), count(apart) if at else 1)
            if at and not known.is_window:
                raise ValueError(f"{kind} folds over all checkpoints: no @{apart}")
            if known.averager is not None:
                known.averager(method.value)
        except ValueError as error:
            raise ValueError(f"{wrong}; {error}") from error
        return method

    @property
    def facts(self) -> Kind:
        """What all methods of its kind have in common."""
        return KINDS[self.kind]

    @property
    def title(self) -> str:
        """Names it in a table: 'UTA_inf 100', 'last'."""
        return " ".join([self.facts.title, *([self.parameter] * bool(self.parameter))])

    @property
    def parameter(self) -> str:
        """The parameter as a text; empty where there is none."""
        if self.value is None:
            return ""
        # `repr` gives a double back exactly; a whole one needs no '.0'.
        short = f"{self.value:g}"
        text = short if float(short) == self.value else repr(self.value)
        return text if self.apart == 1 else f"{text}@{self.apart}"

    @property
    def window(self) -> int | None:
        """How many checkpoints it uses; None where it folds over all."""
        if self.facts.number is None:
            return 1
        return int(self.value or 0) if self.facts.is_window else None

    def averager(self) -> Averager:
        """Returns what is folded over all checkpoints."""
        assert self.facts.averager is not None
        return self.facts.averager(self.value)

    def members(self, rounds: Sequence[int], newest: int) -> list[int]:
        """Returns the rounds whose checkpoints take part, up to the newest."""
        place = windows.position_of(rounds, newest)
        usable = _spaced(rounds[: place + 1], newest, self.apart)
        return list(usable if self.window is None else usable[-self.window :])

    def __str__(self) -> str:
        return f"{self.kind}:{self.parameter}" if self.parameter else self.kind


def _form(name: str, kind: Kind) -> str:
    return name if kind.number is None else f"{name}:{kind.symbol}"


_FORMS = ", ".join(_form(*item) for item in KINDS.items())

LAST = Method("last")
#: The moving average of earlier work: decay 0.9999, warmed up, not tuned.
EMA_BASELINE = Method("ema", 0.9999)


def parse_methods(text: str) -> tuple[Method, ...]:
    """Reads a grid: the order stays, doubles go.

    Example:
      >>> [str(m) for m in parse_methods('uta:10,50 ema:0.9 last opa:10@5')]
      ['uta:10', 'uta:50', 'ema:0.9', 'last', 'opa:10@5']
    """
    methods = []
    for word in text.split():
        kind, colon, values = word.partition(":")
        methods += [
            Method.parse(f"{kind}{colon}{value}") for value in values.split(",")
        ]
    return tuple(dict.fromkeys(methods))


def written(methods: Iterable[Method]) -> str:
    """Writes a grid so that `parse_methods` reads it back.

    Example:
      >>> written(parse_methods('last uta:10 uta:50 ema:0.9'))
      'last uta:10,50 ema:0.9'
    """
    grouped: dict[str, list[str]] = {}
    for method in methods:
        grouped.setdefault(method.kind, []).append(method.parameter)
    return " ".join(
        f"{kind}:{','.join(values)}" if values != [""] else kind
        for kind, values in grouped.items()
    )


def by_kind(methods: Iterable[Method]) -> dict[str, tuple[Method, ...]]:
    """Returns methods by the title of their kind, in order."""
    grouped: dict[str, list[Method]] = {}
    for method in methods:
        grouped.setdefault(method.facts.title, []).append(method)
    return {title: tuple(alike) for title, alike in grouped.items()}


def applicable(methods: Iterable[Method], no_vote: str) -> tuple[Method, ...]:
    """Leaves votes over labels out where `no_vote` says why they mean nothing."""
    return tuple(m for m in methods if not no_vote or m.facts.combine != "labels")


def without_windows_beyond(
    methods: Iterable[Method], checkpoints: int
) -> tuple[Method, ...]:
    """Leaves out what asks for more checkpoints than there are."""
    return tuple(m for m in methods if (m.window or 0) <= checkpoints)


class Outputs(NamedTuple):
    """What OPA and OMV need: see `outputs.aggregate_outputs`."""

    predict: Predict[Weights]
    examples: Examples
    classes: int
    judge: OutputJudge
    positions_per_example: int = 1
    memory_budget: int = 1 << 30


def evaluate(
    series: Series,
    methods: Sequence[Method],
    rounds: Iterable[int],
    score: Callable[[Weights], Grouped],
    outputs: Outputs | None = None,
    on_progress: Progress | None = None,
) -> Iterator[tuple[Method, int, Grouped]]:
    """Scores methods at rounds.

    One backward sum serves all k, one pass all averagers, one forward pass of each
    checkpoint OPA and OMV. Windows that overlap share what was read.

    Args:
      series: The checkpoints.
      methods: The methods.
      rounds: The newest checkpoints; each one of the series'.
      score: Runs one model on all examples: values by group.
      outputs: For OPA and OMV.
      on_progress: Called with a stage's name, the steps done and the steps in all.

    Yields:
      (method, round, values by group). OPA and OMV have those of all examples together,
      under the names of their judge. A run that has diverged has NaN there.
    """
    wanted = sorted(set(rounds))
    for number in wanted:
        windows.position_of(series.rounds, number)
    models = [m for m in dict.fromkeys(methods) if m.facts.combine is None]
    done, total = 0, len(models) * len(wanted)

    def scored(method: Method, number: int, weights: Weights):
        nonlocal done
        values = score(weights)
        done += 1
        if on_progress is not None:
            on_progress("models", done, total)
        return method, number, values

    means: dict[int, list[Method]] = {}
    for method in models:
        if method.facts.number is not None and method.facts.is_window:
            means.setdefault(method.apart, []).append(method)
    longest = [max(several, key=lambda m: m.window or 0) for several in means.values()]
    load = windows.Reused(
        series.load, (m.members(series.rounds, n) for n in wanted for m in longest)
    )
    for number in wanted:
        for method in models:
            if method.facts.number is None:
                yield scored(method, number, series.load(number))
        for apart, several in means.items():
            usable = _spaced(series.rounds, number, apart)
            ks = {int(m.value or 0): m for m in several}
            for k, mean in windows.tail_means(load, usable, number, ks):
                yield scored(ks[k], number, mean)
    averagers = {m: m.averager() for m in models if m.facts.averager is not None}
    if averagers and wanted:
        for number, method, mean in series.folded(averagers, wanted):
            yield scored(method, number, mean)
    combined = [m for m in dict.fromkeys(methods) if m.facts.combine is not None]
    if combined and wanted:
        if outputs is None:
            names = ", ".join(map(str, combined))
            raise ValueError(f"{names}: outputs are needed: predictions of examples")
        yield from _combined(series, combined, wanted, outputs, on_progress)


def _combined(
    series: Series,
    methods: Sequence[Method],
    rounds: Sequence[int],
    outputs: Outputs,
    on_progress: Progress | None,
) -> Iterator[tuple[Method, int, Grouped]]:
    """Scores OPA and OMV; windows that are apart have other members at each round."""

    def advance(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress("outputs", done, total)

    for apart in dict.fromkeys(m.apart for m in methods):
        several = [m for m in methods if m.apart == apart]
        for ends in [rounds] if apart == 1 else [[number] for number in rounds]:
            members = _spaced(series.rounds, ends[-1], apart)
            try:
                values = outputs_lib.aggregate_outputs(
                    series.load,
                    members,
                    ends,
                    [int(m.value or 0) for m in several],
                    outputs.predict,
                    outputs.examples,
                    classes=outputs.classes,
                    judge=outputs.judge,
                    positions_per_example=outputs.positions_per_example,
                    memory_budget=outputs.memory_budget,
                    on_progress=advance,
                ).values
            except outputs_lib.DivergedError as error:
                _log.warning("%s: no value", error)
                values = {}
            nothing = dict.fromkeys(outputs.judge.metrics, math.nan)
            for method in several:
                name = _OF_OUTPUTS[str(method.facts.combine)]
                if name == "OMV" and outputs.judge.of_labels is None:
                    raise ValueError(f"{method}: votes over labels mean nothing here")
                for number in ends:
                    key = (name, number, int(method.value or 0))
                    yield method, number, {"all": values.get(key, nothing)}


def aggregate(series: Series, method: Method, number: int) -> Weights:
    """Returns one model: the method's, of the checkpoints up to a round.

    Raises:
      ValueError: It combines outputs, or asks for more checkpoints than there are.
    """
    if method.facts.combine is not None:
        raise ValueError(
            f"method={method} combines the outputs of several models: it is none "
            "itself; uta, ema and pda are"
        )
    members = method.members(series.rounds, number)
    if method.window is not None and method.window > len(members):
        raise ValueError(f"method={method}: there are only {len(members)} checkpoints")
    if method.facts.number is None:
        return series.load(number)
    if method.facts.averager is not None:
        ((_, _, mean),) = series.folded({method: method.averager()}, [number])
        return mean
    k = int(method.value or 0)
    ((_, mean),) = windows.tail_means(series.load, members, number, [k])
    return mean


def warnings(
    series: Series, methods: Iterable[Method], rounds: Iterable[int]
) -> list[str]:
    """Says where the last k checkpoints are not those of k rounds."""
    ks = {m.window for m in methods if m.window is not None and m.apart == 1}
    return windows.window_warnings(series.rounds, rounds, ks)


def _spaced(rounds: Sequence[int], newest: int, apart: int) -> Sequence[int]:
    """Returns the rounds from which the newest is a multiple of `apart` away."""
    if apart == 1:
        return rounds
    return [n for n in rounds if n <= newest and (newest - n) % apart == 0]
