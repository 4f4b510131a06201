"""Performs a study: search, choices, tests; and says what one has come to.

Whatever is done follows from questions to trials that no score answers yet. So a study
that was stopped goes on where it stood, and one that is done trains nothing.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set

from tff_agg import fields
from tff_agg.experiment.build import Compiled
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.study import cost, progress
from tff_agg.experiment.study.choices import Asked, Choices, choices
from tff_agg.experiment.study.declare import (
    Job,
    Place,
    Study,
    Train,
    Trial,
    TrialsFailedError,
    in_words,
)
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.scores import Scores
from tff_agg.experiment.study.standing import Standing
from tff_agg.experiment.task import Task
from tff_agg.recycling.methods import Method, Progress
from tff_agg.runtime.spread import Ended, OnReport, Processes, spread

_Jobs = tuple[Job, ...]


def perform(
    study: Study,
    out: str | os.PathLike,
    *,
    processes: int = 1,
    address: str | None = None,
    cpus_per_job: float = 1,
    on_progress: Progress | None = None,
) -> Results:
    """Trains or loads only what a question still needs; chooses; tests once.

    Args:
      study: What to do.
      out: The study's folder.
      processes: How many jobs run side by side on this machine.
      address: A Ray cluster to run them on instead, which sees the same storage.
      cpus_per_job: How many CPUs of the cluster a job takes.
      on_progress: Called with a stage's name, the jobs done and the jobs in all; in
        one process also with the steps of each run.

    Returns:
      The results, which are also written: see `Results.write`.

    Raises:
      TrialsFailedError: Trials of the search failed for the first time. The test data
        were not looked at. Another call tries them again, and comes to an end without
        those that fail twice.
      Exception: What a job on test data has raised, after the others are done.
    """
    if address is not None:
        study, out = _anywhere(study), os.path.abspath(out)
    with (
        _sharing() as shared,
        progress.telling(on_progress),
        contextlib.ExitStack() as stack,
    ):
        standing = Standing(study, out, shared)
        crew = _Crew(study, processes, address, cpus_per_job, stack)
        work = functools.partial(_work, standing, crew)
        while asked := _open(standing, (decided := choices(standing)).asked):
            work("search", asked, searching=True)
        # Also what a process has looked at that ended before it could say so.
        _book(standing, decided.asked, tested=_tested(standing, decided))
        finals = [
            asked
            for line, chosen in decided.chosen.items()
            for asked in standing.final_questions(line, chosen)
        ]
        if finals:
            work(str(study.final), finals, searching=False)
        found = Results(standing, decided)
        found.write()
        return found


def results(study: Study, out: str | os.PathLike) -> Results:
    """Returns what is there already; trains nothing."""
    standing = Standing(study, out, Compiled())
    return Results(standing, choices(standing))


def plan(study: Study, out: str | os.PathLike) -> list[Job]:
    """Returns what would be done, as far as it is known before choices are made."""
    standing = Standing(study, out, Compiled())
    decided = choices(standing)
    asked = _open(standing, decided.asked)
    for line, chosen in decided.chosen.items():
        asked += standing.final_questions(line, chosen)
    return standing.jobs(asked)


def _open(standing: Standing, asked: Asked) -> Asked:
    """Returns the questions of a search that have no answer, and may still get one."""
    left = {job.trial for job in standing.jobs(asked)}
    return [
        (trial, questions)
        for trial, questions in asked
        if trial in left and not standing.is_given_up(trial)
    ]


@dataclasses.dataclass
class _Crew:
    """Where jobs run, see `perform`.

    Processes stay for all stages: TensorFlow is imported once in each, and what is
    compiled serves later stages, too.
    """

    study: Study
    processes: int
    address: str | None
    cpus_per_job: float
    stack: contextlib.ExitStack
    _started: Processes | None = None

    def spread(
        self,
        function: Callable[[_Jobs], None],
        items: Sequence[_Jobs],
        on_report: OnReport | None,
    ) -> Generator[Ended, None, None]:
        """Calls a function with each item, as the function `spread` does."""
        here = self.processes == 1 and self.address is None
        trials = (job.trial for jobs in items for job in jobs)
        prepare = set_up(trials, side_by_side=not here)
        if self.address is not None:
            return spread(
                function,
                items,
                processes=self.processes,
                address=self.address,
                cpus_per_job=self.cpus_per_job,
                set_up=prepare,
            )
        if self._started is None:
            if here:
                prepare()
            started = Processes(self.processes, None if here else prepare)
            self._started = self.stack.enter_context(started)
        near = self.study.near
        return self._started.spread(
            function, items, lambda item: near(item[0].trial), on_report
        )


def _work(
    standing: Standing,
    crew: "_Crew",
    stage: str,
    asked: Asked,
    *,
    searching: bool,
) -> None:
    """Does what is left of a stage."""
    study = standing.study
    jobs = standing.jobs(asked)
    total = len({trial for trial, _ in asked})
    done = total - len(jobs)
    rounds = _rounds(stage, jobs) if crew.processes > 1 else None
    if rounds is None:
        progress.tell(stage, done, total)
    items = _items(study, jobs)
    errors: dict[Trial, Exception] = {}
    job = functools.partial(_score, study.train, study.task, standing.out)
    ended_jobs = crew.spread(job, items, None if rounds is None else rounds.on_report)
    with contextlib.closing(ended_jobs):
        for ended in ended_jobs:
            trials = [job.trial for job in items[ended.position]]
            if ended.error is not None:
                errors |= dict.fromkeys(trials, ended.error)
                if searching:
                    for trial in trials:
                        standing.note_failure(trial, ended.error)
            if searching:
                _book(standing, asked, set(trials))
            done += len(trials)
            if rounds is None:
                progress.tell(stage, done, total)
            else:
                rounds.end(*map(str, trials))
    standing.scores.refresh()
    if not errors:
        return
    first = next(iter(errors.values()))
    if not searching or any(trial.folder for trial in errors):
        raise first
    again = [trial for trial in errors if not standing.is_given_up(trial)]
    if again:
        names = "; ".join(map(str, again))
        raise TrialsFailedError(
            f"Trials that failed: {names}. The test data were not looked at. Run the "
            "same command again: it comes to an end without a trial that fails twice. "
            f"The first failed of {type(first).__name__}: {first}"
        ) from first


def _rounds(stage: str, jobs: Sequence[Job]) -> progress.Rounds | None:
    """Returns what counts the rounds of a stage; None where runs are there already."""
    trials = [job.trial for job in jobs if job.trial.folder is None]
    if not trials:
        return None
    return progress.Rounds(stage, {str(t): t.config.rounds for t in trials})


def _items(study: Study, jobs: Sequence[Job]) -> list[_Jobs]:
    """Returns what is worked on in one go."""
    if not study.train.together:
        return [(job,) for job in jobs]
    near: dict[object, list[Job]] = {}
    for job in jobs:
        near.setdefault(study.near(job.trial), []).append(job)
    return [tuple(together) for together in near.values()]


# What jobs in this process share.
_shared: Compiled | None = None


@contextlib.contextmanager
def _sharing() -> Iterator[Compiled]:
    """Lets the jobs of this process share what is compiled, inside the block."""
    global _shared
    before = _shared
    try:
        with Compiled() as _shared:
            yield _shared
    finally:
        _shared = before


def _score(train: Train, task: type[Task], out: pathlib.Path, jobs: _Jobs) -> None:
    """Answers the questions of a job, in whichever process, and writes the scores."""
    global _shared
    if _shared is None:
        _shared = Compiled()
    scores, place = Scores(out), Place(task, out, _shared)
    for trial, rows in train.answer(jobs, place):
        name = train.run(trial, place)
        if name is None:
            raise RuntimeError(f"{trial}: was trained, but there is no run of it")
        scores.add(name, rows)


def set_up(
    trials: Iterable[Trial], *, side_by_side: bool = False
) -> Callable[[], None]:
    """Returns what a process does before it imports TensorFlow, if trials need it.

    Runs side by side have as many operations at a time as they have lanes, and leave
    the other cores to each other.
    """
    configs = [trial.config for trial in trials]
    lanes = [c.lanes for c in configs if isinstance(c, TrainConfig)]
    known = [number for number in lanes if number is not None]
    inter_op = max(known) if side_by_side and known and None not in lanes else None
    return functools.partial(_set_up_tensorflow, bool(lanes), inter_op)


def _set_up_tensorflow(needed: bool, inter_op: int | None) -> None:
    if needed and "tensorflow" not in sys.modules:
        from tff_agg import runtime

        runtime.set_up_tensorflow(inter_op=inter_op)


def _book(
    standing: Standing,
    asked: Asked,
    ended: Set[Trial] | None = None,
    tested: Set[pathlib.Path] = frozenset(),
) -> None:
    """Tells the privacy reports of runs what looking at them has cost so far.

    Also the reports of a search that is never ended must say how much was looked at.

    Args:
      standing: The study.
      asked: All that the search asks.
      ended: The trials that a job has just ended; None: whichever have ended.
      tested: The folders of runs that were begun for the table, and chose nothing.
    """
    arms: dict[tuple[str, str], dict[Trial, set[Method]]] = {}
    for trial, questions in asked:
        methods = arms.setdefault((trial.row, trial.arm), {}).setdefault(trial, set())
        methods.update(method for question in questions for method in question.methods)
    if any(len({in_words(t.settings) for t in trials}) > 1 for trials in arms.values()):
        # Whatever was begun here was looked at, by an earlier grid as well.
        begun = sorted(set((standing.out / "runs").glob("*/")) - tested)
        if begun:
            searched = cost.of_training(begun, len(begun))
            cost.add_to_reports(begun, standing.out, searched)
        return
    for trials in arms.values():
        known = [standing.folder(trial) for trial in trials]
        folders = [folder for folder in known if folder is not None]
        looked_at = set().union(*map(standing.looked_at, trials))
        if not folders or not looked_at:
            continue
        if ended is not None and ended.isdisjoint(trials):
            continue
        points = {str(method) for methods in trials.values() for method in methods}
        searched = cost.of_inference(folders, len(points | looked_at))
        cost.add_to_reports(folders, standing.out, searched)


def _tested(standing: Standing, decided: Choices) -> set[pathlib.Path]:
    """Returns the folders of the table's runs with which nothing was chosen."""
    found = {
        standing.folder(trial)
        for line, chosen in decided.chosen.items()
        for trial, _ in standing.final_questions(line, chosen)
    }
    found -= {standing.folder(trial) for trial, _ in decided.asked}
    return {folder for folder in found if folder is not None}


def _anywhere(study: Study) -> Study:
    """Returns a study whose data are found from any folder."""

    def absolute(config: RunConfig) -> RunConfig:
        field = fields.data_field(type(config))
        where = field and getattr(config, field)
        if not field or not where or not os.path.exists(where):
            return config
        return dataclasses.replace(config, **{field: os.path.abspath(where)})

    arms = {
        line.arm: dataclasses.replace(
            line.arm,
            config=absolute(line.arm.config),
            folders=tuple(map(os.path.abspath, line.arm.folders)),
        )
        for line in study.lines
    }
    lines = tuple(dataclasses.replace(line, arm=arms[line.arm]) for line in study.lines)
    return dataclasses.replace(study, lines=lines)
