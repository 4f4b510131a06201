"""One kind of weights of one run, checkpoint by checkpoint: stored, or passing by."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tff_agg.aliases import Weights
from tff_agg.averaging import Averager
from tff_agg.recycling import windows

if TYPE_CHECKING:
    from tff_agg.recycling.methods import Method

_T = TypeVar("_T")

#: What a run saves in each round: θ_t, and θ^AGG_t, which it broadcasts.
NAMES = ("iterate", "aggregate")
#: What stands beside the scores of both: always the same answer, the best one.
TRIVIAL = "trivial"
ALWAYS_THE_SAME = "always the same answer"
#: The one of them that is used where nothing else is asked for.
BROADCAST = "aggregate"
#: What tables and pictures call them.
IN_WORDS: Mapping[str, str] = {"aggregate": "θ^AGG, as broadcast", "iterate": "θ"}


def apart(by_name: Mapping[str, _T]) -> dict[str, _T]:
    """Returns the values of both by their names in words, first what is broadcast.

    Without an averager both are the same, and there is one entry. That of `TRIVIAL`, if
    there is one, comes last.

    Example:
      >>> apart({'iterate': 0.1, 'aggregate': 0.2})
      {'θ^AGG, as broadcast': 0.2, 'θ': 0.1}
      >>> apart({'iterate': 0.1, 'aggregate': 0.1})
      {'θ, as broadcast': 0.1}
    """
    in_words = {words: by_name[name] for name, words in IN_WORDS.items()}
    used, other = in_words.values()
    in_words = {"θ, as broadcast": used} if used == other else in_words
    if TRIVIAL in by_name:
        in_words[ALWAYS_THE_SAME] = by_name[TRIVIAL]
    return in_words


class Series(Protocol):
    """One kind of weights, θ or θ^AGG, of one run."""

    @property
    def rounds(self) -> Sequence[int]:
        """The rounds that have a checkpoint, in order."""

    def load(self, number: int, /) -> Weights:
        """Returns the weights of a round."""

    def folded(
        self, averagers: Mapping["Method", Averager], rounds: Sequence[int]
    ) -> Iterator[tuple[int, "Method", Weights]]:
        """Yields (round, method, average of all checkpoints up to it)."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A series that can be read again: a store's, or a dict's.

    Attributes:
      rounds: The rounds that have a checkpoint, in order.
      load: Returns the weights of a round.
    """

    rounds: Sequence[int]
    load: Callable[[int], Weights]

    def folded(
        self, averagers: Mapping["Method", Averager], rounds: Sequence[int]
    ) -> Iterator[tuple[int, "Method", Weights]]:
        """Reads all checkpoints once, for all averagers together."""
        stream = ((number, self.load(number)) for number in self.rounds)
        return windows.fold_averagers(averagers, stream, rounds)


class Passing:
    """A series that passes by: its last checkpoints, and averages kept up to date.

    In memory are the longest window and the averagers' states.

    Example:
      series = Passing(parse_methods('uta:100 ema:0.9'))
      for number, weights in training:
          series.add(number, weights)
      scores = evaluate(series, methods, [number], score)
    """

    def __init__(
        self,
        methods: Iterable["Method"],
        following: Callable[[Mapping["Method", Averager], Any, Any], Any] | None = None,
    ):
        """Takes what will be asked for.

        Args:
          methods: The methods.
          following: Moves all averagers' states on at once, if it is to be compiled.
        """
        every = tuple(methods)
        reach = [(m.window or 1, m.apart) for m in every]
        self._reach = max([(k - 1) * apart for k, apart in reach], default=0)
        self._averagers = {m: m.averager() for m in every if m.facts.averager}
        self._following = following or _moved
        self._states: dict[Method, Any] = {}
        self._tail: dict[int, Weights] = {}
        self._means: dict[Method, Weights] = {}

    def add(self, number: int, weights: Weights) -> None:
        """Takes the next checkpoint."""
        self._tail[number] = weights
        while len(self._tail) > self._reach + 1:
            del self._tail[next(iter(self._tail))]
        if not self._averagers:
            return
        if not self._states:
            self._states = {m: a.init(weights) for m, a in self._averagers.items()}
            self._means = dict.fromkeys(self._averagers, weights)
        else:
            self._states, self._means = self._following(
                self._averagers, self._states, weights
            )

    def copy(self) -> "Passing":
        """Returns what has passed so far, to be gone on with apart."""
        other = Passing((), self._following)
        other.__dict__.update(self.__dict__)
        other._tail = dict(self._tail)
        return other

    @property
    def rounds(self) -> Sequence[int]:
        """The rounds that are still there."""
        return list(self._tail)

    def load(self, number: int) -> Weights:
        """Returns the weights of one of them."""
        return self._tail[number]

    def folded(
        self, averagers: Mapping["Method", Averager], rounds: Sequence[int]
    ) -> Iterator[tuple[int, "Method", Weights]]:
        """Yields the averages as they stand: at the newest round."""
        newest = next(reversed(self._tail))
        if list(rounds) != [newest]:
            raise ValueError(
                f"rounds={list(rounds)}: a run in memory stands at round {newest} and "
                "is judged there"
            )
        for method in averagers:
            yield newest, method, self._means[method]


def _moved(averagers, states, weights):
    both = {m: a.next(states[m], weights) for m, a in averagers.items()}
    return {m: s for m, (s, _) in both.items()}, {m: v for m, (_, v) in both.items()}
