"""OPA and OMV: the outputs of the last k checkpoints, combined, for every k at once.

One forward pass of each checkpoint over each portion of the examples serves OPA, OMV,
every k and every round. The predicted distributions are added up from the newest
checkpoint backwards, so that the sum of the last k is the running sum after k steps;
where curves over several rounds t are wanted, the sum as it stood before t is kept
aside and subtracted. To make that exact, the scores are first rounded to multiples of
2⁻⁴⁰: all sums are then free of rounding errors, whatever the order of the additions.
Outputs that are no distributions are added up as they are, in double precision.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from tff_agg import checks, structure
from tff_agg.recycling.metrics import OutputJudge, accuracy_judge

# Adding and subtracting this rounds a double to a multiple of 2⁻⁴⁰. Sums of up to 8,192
# scores of at most one are exact then. Probabilities in single precision above 8e-6 are
# such multiples already; smaller ones change by less than 5e-13.
_ROUNDING = 1.5 * 2.0**12
_MOST_MEMBERS = 8192


class Predictions(NamedTuple):
    """What a model predicts for some examples.

    Attributes:
      scores: [positions, classes], from 0 to 1: predicted distributions; outputs of any
        size for a judge of such.
      targets: [positions], the right labels, in the same order whatever the weights.
    """

    scores: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True)
class OutputScores:
    """How OPA and OMV do.

    Attributes:
      values: By ('OPA' or 'OMV', round, k), the values of the metrics by name.
      total: How many positions were judged.
      labels: By the same keys, the labels themselves, where they were asked for.
      targets: The right labels, where they were asked for.
      passes: How many forward passes were run.
      portions: In how many portions the examples were taken.
    """

    values: dict[tuple[str, int, int], dict[str, float]]
    total: int
    labels: dict[tuple[str, int, int], np.ndarray]
    targets: np.ndarray | None
    passes: int
    portions: int


class DivergedError(ValueError):
    """A model's scores are no probabilities."""


class Examples(Protocol):
    """Examples that can be counted, and sliced along their first axis."""

    def __len__(self) -> int:
        """Returns how many there are."""

    def __getitem__(self, part: slice, /) -> object:
        """Returns some of them, as `predict` takes them."""


#: A model's weights, in whatever form they were stored.
Model = TypeVar("Model")
#: Returns a round's weights.
Load = Callable[[int], Model]
#: `predict(weights, examples)`; which kind of examples is between a task and its data.
Predict = Callable[[Model, Any], Predictions]


class _Window(NamedTuple):
    """A round whose last k checkpoints are wanted: positions among the members."""

    round: int
    newest: int
    oldest: int


def aggregate_outputs(
    load: Load[Model],
    members: Sequence[int],
    rounds: Iterable[int],
    ks: Iterable[int],
    predict: Predict[Model],
    examples: Examples,
    *,
    classes: int,
    judge: OutputJudge | None = None,
    positions_per_example: int = 1,
    memory_budget: int = 1 << 30,
    keep_labels: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> OutputScores:
    """Runs OPA and OMV for every k and every round, in one pass over the checkpoints.

    OPA predicts the class with the highest mean score; of equals, the lowest number.
    OMV predicts the label that most checkpoints predict; of equals, the one that the
    newest of their checkpoints predicts. Where fewer than k checkpoints exist, all are
    used.

    Args:
      load: Returns a round's weights.
      members: The rounds that have a checkpoint, in order.
      rounds: Where to evaluate; each one of `members`.
      ks: How many checkpoints to combine.
      predict: `predict(weights, examples[a:b])` returns `Predictions`.
      examples: What to predict; sliced along its first axis.
      classes: The number of classes.
      judge: How combined outputs are judged; by the share of right labels if not
        given. OMV is left out where the judge cannot judge labels.
      positions_per_example: The most predictions that one example asks for.
      memory_budget: In bytes: the examples are taken in portions small enough that
        scores and sums stay within it. Checkpoints are kept in up to half of it if
        all of them fit, and read again for every portion if not.
      keep_labels: Whether to return all predicted labels.
      on_progress: Called with the forward passes done and those in all.

    Example:
      def predict(weights, rows):
          return Predictions(weights[rows], np.zeros(len(rows), int))
      scores = aggregate_outputs(
          np.load, [1, 2, 3], [3], [1, 3], predict, np.arange(100), classes=10)
      scores.values['OPA', 3, 1]['accuracy']
    """
    judging: OutputJudge = judge or accuracy_judge()
    ks = sorted(set(ks))
    if not ks:
        raise ValueError("ks must name at least one number of checkpoints")
    checks.whole("ks", ks[0])
    windows = _windows(members, sorted(set(rounds)), ks[-1])
    plan = _needed(windows)
    if len(plan) > _MOST_MEMBERS:
        raise ValueError(f"{len(plan)} checkpoints are more than {_MOST_MEMBERS}.")
    load, cache_bytes = _cached(load, [members[i] for i in plan], memory_budget // 2)
    size = portion_size(
        memory_budget - cache_bytes,
        classes * positions_per_example,
        _most_snapshots(windows, plan),
    )
    portions = [slice(i, i + size) for i in range(0, len(examples), size)]
    parts: dict[tuple[str, int, int], list[object]] = {}
    labels: dict[tuple[str, int, int], list[np.ndarray]] = {}
    all_targets, total, passes = [], 0, 0

    def advance() -> None:
        nonlocal passes
        passes += 1
        if on_progress is not None:
            on_progress(passes, len(plan) * len(portions))

    for portion in portions:
        part = examples[portion]

        def run(i: int, part=part) -> Predictions:
            predictions = predict(load(members[i]), part)
            advance()
            return _checked(predictions, members[i], judging.distributions)

        targets = None
        for key, outputs in _one_portion(run, windows, plan, ks, judging):
            targets = outputs.targets
            parts.setdefault(key, []).append(outputs.judged)
            if keep_labels:
                labels.setdefault(key, []).append(outputs.labels)
        assert targets is not None
        total += len(targets)
        if keep_labels:
            all_targets.append(targets)
    values = {key: judging.values(judged) for key, judged in parts.items()}
    chosen = {key: np.concatenate(pieces) for key, pieces in labels.items()}
    joined = np.concatenate(all_targets) if all_targets else None
    return OutputScores(values, total, chosen, joined, passes, len(portions))


def portion_size(memory_budget: int, scores_per_example: int, snapshots: int) -> int:
    """Returns how many examples' scores and sums fit into a budget of bytes."""
    # The running sum, a buffer and the snapshots are doubles; the scores are singles,
    # once as they are computed and once as they are passed on.
    per_example = scores_per_example * (8 * (2 + snapshots) + 2 * 4)
    if memory_budget < per_example:
        raise ValueError(
            f"memory_budget leaves {memory_budget} bytes, but one example needs "
            f"{per_example} ({scores_per_example} scores, {snapshots} sums kept aside)."
        )
    return memory_budget // max(per_example, 1)


def majority_labels(
    labels: np.ndarray, ks: Iterable[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (k, the majority of the first k rows) for every k.

    Of labels with equally many votes the one that comes first wins.

    Args:
      labels: [voters, positions], the newest checkpoint's labels first.
      ks: How many voters; where there are fewer, all of them vote.

    Example:
      >>> labels = np.array([[7], [8], [8], [7]])
      >>> [(k, winner.tolist()) for k, winner in majority_labels(labels, [2, 3, 4])]
      [(2, [7]), (3, [8]), (4, [7])]
    """
    voters, positions = labels.shape
    first = _first_occurrences(labels)
    votes = np.zeros((positions, voters), np.int32)
    here = np.arange(positions)
    winner = np.zeros(positions, np.intp)
    most = np.zeros(positions, np.int32)
    wanted = sorted(set(ks))
    for voter in range(min(voters, wanted[-1]) if wanted else 0):
        label = first[voter]
        count = votes[here, label] + 1
        votes[here, label] = count
        # A label that came first earlier is the newer one: it wins among equals.
        better = (count > most) | ((count == most) & (label < winner))
        np.copyto(winner, label, where=better)
        np.copyto(most, count, where=better)
        last = voter + 1 == voters
        for k in [k for k in wanted if k == voter + 1 or (last and k > voters)]:
            yield k, labels[winner, here]


def _first_occurrences(labels: np.ndarray) -> np.ndarray:
    """Replaces every label by the index of the first row that has it too."""
    order = np.argsort(labels, axis=0, kind="stable")
    ranked = np.take_along_axis(labels, order, axis=0)
    new = np.ones(labels.shape, bool)
    new[1:] = ranked[1:] != ranked[:-1]
    # In a stable order the first of a group of equals is the first row that has it.
    start = np.maximum.accumulate(np.where(new, np.arange(len(labels))[:, None], 0))
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, start, axis=0), axis=0)
    return first


def _windows(members, rounds, longest) -> list[_Window]:
    places = {number: i for i, number in enumerate(members)}
    missing = [number for number in rounds if number not in places]
    if missing or not rounds:
        raise ValueError(
            f"rounds {missing or rounds} have no checkpoint; give some of {len(places)}"
            + (f" from {members[0]} to {members[-1]}." if len(members) else ".")
        )
    return [
        _Window(number, places[number], max(0, places[number] - longest + 1))
        for number in rounds
    ]


def _needed(windows: list[_Window]) -> list[int]:
    """Returns the members that any window needs, newest first."""
    needed: set[int] = set()
    for window in windows:
        needed.update(range(window.oldest, window.newest + 1))
    return sorted(needed, reverse=True)


def _most_snapshots(windows: list[_Window], plan: list[int]) -> int:
    """Returns how many sums are kept aside at once."""
    newest = plan[0]
    return max(
        sum(w.oldest <= i <= w.newest and w.newest < newest for w in windows)
        for i in plan
    )


class _Combined(NamedTuple):
    """One portion's combined outputs: what the judge said, the labels, the targets."""

    judged: object
    labels: np.ndarray
    targets: np.ndarray


def _one_portion(
    run: Callable[[int], Predictions],
    windows: list[_Window],
    plan: list[int],
    ks: list[int],
    judge: OutputJudge,
) -> Iterator[tuple[tuple[str, int, int], _Combined]]:
    """Runs all members over one portion; yields what was combined, by key."""
    by_newest = {window.newest: window for window in windows}
    targets: np.ndarray | None = None
    labels: dict[int, np.ndarray] = {}
    before: dict[_Window, np.ndarray | None] = {}
    for i in plan:
        scores, this_targets = run(i)
        if targets is None:
            targets = np.asarray(this_targets)
            sums, buffer = np.zeros(scores.shape), np.empty(scores.shape)
        elif not np.array_equal(targets, this_targets):
            raise ValueError("predict gave other targets for other weights.")
        if i in by_newest:
            # The very first window starts from an empty sum.
            before[by_newest[i]] = sums.copy() if labels else None
        labels[i] = scores.argmax(axis=1).astype(np.int32)
        if judge.distributions:
            np.add(scores, _ROUNDING, out=buffer, dtype=np.float64)
            buffer -= _ROUNDING
            sums += buffer
        else:
            sums += scores
        for window in list(before):
            depth = window.newest - i + 1
            reached = [k for k in ks if k == depth or (i == 0 and k > depth)]
            if reached:
                start = before[window]
                tail = sums if start is None else np.subtract(sums, start, out=buffer)
                best = tail.argmax(axis=1).astype(np.int32)
                judged = judge.of_scores(tail, depth, targets)
                for k in reached:
                    yield ("OPA", window.round, k), _Combined(judged, best, targets)
            if i == window.oldest:
                del before[window]
    if judge.of_labels is None or targets is None:
        return
    for window in windows:
        newest_first = [labels[i] for i in range(window.newest, window.oldest - 1, -1)]
        for k, winner in majority_labels(np.stack(newest_first), ks):
            judged = judge.of_labels(winner, targets)
            yield ("OMV", window.round, k), _Combined(judged, winner, targets)


def _checked(predictions: Predictions, number: int, distributions: bool) -> Predictions:
    """Refuses scores that are no distributions, or not finite."""
    scores = np.asarray(predictions.scores)
    if scores.ndim != 2 or len(scores) != len(predictions.targets):
        raise ValueError(
            f"round {number}: predict must return scores [positions, classes] and as "
            f"many targets; got {scores.shape} and {len(predictions.targets)}."
        )
    top = scores.max(initial=0.0)
    if not distributions:
        if not np.isfinite(scores).all():
            raise DivergedError(
                f"round {number}: outputs are not finite. Has the run diverged?"
            )
    elif not 0 <= top <= 1 + 1e-3:
        raise DivergedError(
            f"round {number}: the highest score is {top}; scores must be finite "
            "predicted probabilities. Has the run diverged?"
        )
    return Predictions(scores, predictions.targets)


def _cached(
    load: Load[Model], numbers: Sequence[int], budget: int
) -> tuple[Load[Model], int]:
    """Keeps the checkpoints in memory if all fit; returns their bytes as well."""
    weights = load(numbers[0])
    size = sum(np.asarray(leaf).nbytes for leaf in structure.leaves(weights))
    if size * len(numbers) > budget:
        return load, 0
    cached = {numbers[0]: weights}

    def keeping(number: int) -> Model:
        if number not in cached:
            cached[number] = load(number)
        return cached[number]

    return keeping, size * len(numbers)
