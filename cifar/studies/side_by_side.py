"""Trains the runs of a seed in lockstep, in memory: scores and some checkpoints stay.

The runs of one seed that differ in learning rate and averager only have the same
batches and the same noise, which are known: they have no guarantee (see
`cifar.lockstep`). Trainer, sampler and aggregations are the library's.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cifar.task import Cifar, CifarConfig
from tff_agg import files
from tff_agg.aliases import Weights
from tff_agg.averaging import Averager
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.build.dp_sgd import SampledBuild
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study import progress
from tff_agg.experiment.study.declare import Job, Place, Rows, Score, Train, Trial
from tff_agg.experiment.study.scores import digest
from tff_agg.experiment.study.train import Evaluator, identity_of, methods_of
from tff_agg.recycling.methods import Method
from tff_agg.recycling.series import Passing
from tff_agg.server import state as server

Keep = Callable[[RunConfig], Collection[int]]
#: In what runs in lockstep may differ.
FREE = (
    *("learning_rate", "averager", "k", "ema_weight", "ema_decay", "ema_warm_up"),
    *("gamma", "beta", "start_round", "step_from"),
)


def nothing(config: RunConfig) -> tuple[int, ...]:
    """Keeps no checkpoint."""
    return ()


def lockstep(keep: Keep = nothing) -> Train:
    """Runs that take every step together; of tested ones some checkpoints stay.

    Args:
      keep: The steps of a run whose iterates are written, for `checkpoints`.
    """
    return _Lockstep(keep)


def alike(trial: Trial) -> Hashable:
    """What the runs of one lockstep share: all but learning rate and averager."""
    config = trial.config
    names = [field.name for field in dataclasses.fields(config)]
    return tuple((n, getattr(config, n)) for n in names if n not in FREE)


def checkpoints(out: pathlib.Path, run: str) -> dict[int, Weights]:
    """Returns the iterates of a run that were kept, by step; none if none were."""
    found: dict[int, Weights] = {}
    if (path := _path(out, run)).exists():
        with np.load(path) as stored:
            for key in stored.files:
                step, name = key.split("/")
                found.setdefault(int(step), {})[name] = stored[key]
    return found


def _path(out: pathlib.Path, run: str) -> pathlib.Path:
    return out / "checkpoints" / f"{run}.npz"


@dataclasses.dataclass(frozen=True)
class _Lockstep(Train):
    """See `lockstep`."""

    together = True

    keep: Keep

    def run(self, trial: Trial, place: Place) -> str:
        """Names a run by what is trained."""
        return digest({"lockstep": True}, identity_of(place.task(trial)))

    def answer(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Trial, Rows]]:
        """Trains all runs side by side, and evaluates in passing."""
        runs = _Runs([job.trial.config for job in jobs], jobs, place.shared)
        evaluator = Evaluator(runs.first)
        rows: list[list[Score]] = [[] for _ in jobs]
        kept: list[dict[str, np.ndarray]] = [{} for _ in jobs]
        keeping = [
            self.keep(job.trial.config)
            if any(question.split == "test" for question in job.questions)
            else ()
            for job in jobs
        ]
        total = runs.first.config.rounds
        for step, series in runs.steps():
            for lane, (job, of_lane) in enumerate(zip(jobs, series, strict=True)):
                rows[lane] += evaluator.rows_at(step, job.questions, of_lane)
                if step in keeping[lane]:
                    weights = of_lane["iterate"].load(step)
                    kept[lane] |= {f"{step}/{name}": w for name, w in weights.items()}
            progress.tell(f"{len(jobs)} runs, {jobs[0].trial.row}", step, total)
        for job, scores, arrays in zip(jobs, rows, kept, strict=True):
            if arrays:
                path = _path(place.out, self.run(job.trial, place))
                path.parent.mkdir(parents=True, exist_ok=True)
                with files.replacing(path, durable=False) as file:
                    np.savez(file, **arrays)
            yield job.trial, scores


class _Runs:
    """Runs that take every step together, and the series that they leave."""

    def __init__(
        self, configs: Sequence[Any], jobs: Sequence[Job], shared: Compiled
    ) -> None:
        """Builds them; nothing is trained yet."""
        first = shared.task(Cifar, configs[0])
        assert isinstance(first, Cifar)
        self.first = first
        # No seed is part of a compiled step: runs that differ in it share theirs.
        self._together = _built(
            tuple(
                dataclasses.replace(config, seed=0, insecure_noise_seed=0)
                for config in configs
            )
        )
        self._secret = (configs[0].insecure_noise_seed or 0, 0)
        self._read = build(first, shared).cohort
        self._asked = methods_of([q for job in jobs for q in job.questions])

    def steps(self) -> Iterator[tuple[int, list[Mapping[str, Passing]]]]:
        """Yields every step with the series of each run.

        A run that still takes the steps of another has its iterates from there.
        """
        together, initial = self._together, self.first.initial_weights()
        states = together.initialize(initial, self._secret)
        lanes = range(len(states))
        iterates = [self._passing("iterate", initial) for _ in lanes]
        aggregates = [self._passing("aggregate", initial) for _ in lanes]
        before: Sequence[int] = tuple(lanes)
        for step in range(1, self.first.config.rounds + 1):
            leaders = together.leaders(step - 1)
            parted = {
                lane: iterates[before[lane]].copy()
                for lane in lanes
                if leaders[lane] == lane != before[lane]
            }
            for lane, series in parted.items():
                iterates[lane] = series
            states = together.next(states, self._read(step - 1, self._secret).data)
            for lane in set(leaders):
                iterates[lane].add(step, _loaded(server.iterate(states[lane])))
            for lane in lanes:
                aggregates[lane].add(step, _loaded(server.aggregate(states[lane])))
            yield (
                step,
                [
                    {"iterate": iterates[leaders[lane]], "aggregate": aggregates[lane]}
                    for lane in lanes
                ],
            )
            before = leaders

    def _passing(self, name: str, initial: Weights) -> Passing:
        series = Passing(self._asked.get(name, ()), _following)
        series.add(0, initial)
        return series


@functools.lru_cache(1)
def _built(configs: tuple[CifarConfig, ...]) -> Any:
    """Builds the processes of several runs."""
    from cifar.lockstep import Lane, Lockstep

    def start(config: CifarConfig) -> int | None:
        """Returns from which step on averages are used; None: never."""
        return None if config.averager == "last" else config.start_round

    return Lockstep(
        [
            Lane(SampledBuild(Cifar(c), Compiled()).build_process(), start(c))
            for c in configs
        ]
    )


def _loaded(weights: Mapping[str, Any]) -> Weights:
    return {name: np.asarray(value) for name, value in weights.items()}


def _following(averagers: Mapping[Method, Averager], states: Any, weights: Any) -> Any:
    """Moves all averages on in one compiled step."""
    return _compiled(tuple(averagers))(states, weights)


@functools.lru_cache(2)
def _compiled(methods: tuple[Method, ...]) -> Callable[..., Any]:
    import jax

    averagers = {method: method.averager() for method in methods}

    def moved(states: Any, weights: Any) -> Any:
        both = {m: a.next(states[m], weights) for m, a in averagers.items()}
        return {m: s for m, (s, _) in both.items()}, {
            m: v for m, (_, v) in both.items()
        }

    return jax.jit(moved)
