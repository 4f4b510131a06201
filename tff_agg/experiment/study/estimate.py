"""What is left of a study, and how long it would take."""

import pathlib

from tff_agg.experiment.build import Compiled
from tff_agg.experiment.run import estimate as estimates
from tff_agg.experiment.run import ledger
from tff_agg.experiment.study import search, show
from tff_agg.experiment.study.declare import Place, Study
from tff_agg.experiment.study.show import Table


def of_study(study: Study, out: pathlib.Path) -> str:
    """Lists the runs that are left with their time; trains nothing.

    The time is by two measured rounds of the first run that is left. What is chosen is
    trained again with the table's seeds: of that only the lines are known whose choice
    is made.
    """
    rows: list[list[object]] = []
    measured: estimates.Estimate | None = None
    total = 0.0
    with Compiled() as shared:
        place = Place(study.task, out, shared)
        for trial, _ in search.plan(study, out):
            task, folder = place.task(trial), study.train.folder(trial, place)
            done = 0 if folder is None else _done(folder)
            left = task.config.rounds - done
            seconds = 0.0
            if left and trial.folder is None:
                if measured is None:
                    search.set_up([trial])()
                    # Of a run of its own, wherever that would be.
                    measured = estimates.estimate(task, str(out / "dry_run"))
                validations = -(-left // task.config.evaluate_every)
                seconds = measured.seconds_for(left, validations)
            total += seconds
            rows.append([str(trial), done, left, estimates.duration(seconds)])
    table = show.render(Table(["run", "rounds done", "left", "time"], rows))
    if measured is None:
        return f"{table}\nNothing is left to train; scoring models is not counted."
    return (
        f"{table}\n{estimates.duration(total)} in all, one run at a time, by two "
        "measured rounds; saving and the scores of models are not counted. Runs of "
        "lines that have not chosen yet are not known."
    )


def _done(folder: pathlib.Path) -> int:
    history = ledger.Ledger(folder).read()
    return 0 if history is None else max(history.last, 0)
