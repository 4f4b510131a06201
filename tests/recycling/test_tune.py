"""The search from the command's options to its files and the runs' reports."""

import json
import pathlib
from statistics import fmean

import pytest
from absl.flags import IllegalFlagValueError

from cifar.task import Cifar
from pcvr.task import Pcvr
from stackoverflow.data.token_store import TokenStore
from stackoverflow.task import StackOverflow
from tests import command_lines
from tests.experiment import tiny_samples
from tests.experiment.tiny_samples import Tiny
from tests.recycling.written_runs import read_csv, write_run
from tff_agg import privacy
from tff_agg.checkpoints import blobs
from tff_agg.experiment.commands import flags, tune
from tff_agg.experiment.commands.tune import TuneOptions
from tff_agg.experiment.run import recording
from tff_agg.experiment.run import run as training
from tff_agg.experiment.study.declare import TrialsFailedError
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.grids import INFERENCE_BETAS, KS, TRAINING_BETAS, Grids
from tff_agg.recycling.methods import Method, parse_methods

_SENTENCES = 60
_GRID = "uta:2,4,50 opa:2,5 omv:2,5 ema:0.5,0.9,0.9999"


@pytest.fixture
def looks(monkeypatch):
    """Lists the splits whose samples are drawn from here on."""
    found: list[str] = []
    real = TokenStore.sample_rows

    def spy(self, split, *arguments, **named):
        found.append(split)
        return real(self, split, *arguments, **named)

    monkeypatch.setattr(TokenStore, "sample_rows", spy)
    return found


@pytest.fixture
def drawn(monkeypatch):
    """Lists the splits of which samples of the tiny task are drawn from here on."""
    found: list[str] = []
    real = Tiny.sample

    def spy(self, split, *arguments):
        found.append(split)
        return real(self, split, *arguments)

    monkeypatch.setattr(Tiny, "sample", spy)
    return found


def searched(options, task=StackOverflow):
    """Returns the results and what is shown of them."""
    found = perform(tune.declare(task, options), options.out)
    report = tune.report(task, options, found)
    report.write(found.out)
    return found, report


def report_of(folder):
    """Returns the searches that a run's report names, and its page."""
    folder = pathlib.Path(folder)
    content = json.loads((folder / "privacy_report.json").read_text())
    page = (folder / "privacy_report.md").read_text()
    return content.get("tuning", {}), page


def files_of(out):
    """Returns all that a search writes, here and into the runs, but for the picture."""
    return {
        path: path.read_bytes()
        for name in ("*.csv", "table.md", "privacy_*")
        for path in pathlib.Path(out).rglob(name)
    }


def test_inference_picks_on_validation_and_tests_once(own_runs, tmp_path, looks):
    out = tmp_path / "out"
    options = TuneOptions(
        runs=own_runs, out=str(out), methods=parse_methods(_GRID), examples=_SENTENCES
    )
    results, report = searched(options)
    # k = 50 is beyond the nine checkpoints.
    assert {line.name: len(line.use.methods) for line in results.lines} == {
        "last": 1, "UTA_inf": 2, "EMA_inf": 3, "OPA": 2, "OMV": 2,
        "EMA_baseline": 1, "best of all": 10,
    }  # fmt: skip
    # The test sample is drawn after the choice.
    assert set(looks) == {"heldout", "test"} and looks == sorted(looks)
    rows = read_csv(out / "candidates.csv")
    for line in results.lines[1:-1]:
        own = [r for r in rows if r["line"] == line.name]
        by_method: dict = {}
        for row in own:
            by_method.setdefault(row["method"], []).append(float(row["accuracy"]))
        chosen = {r["method"] for r in own if r["chosen"] == "1"}
        assert chosen <= {str(results.chosen[line].method)}
        assert not own or chosen == {max(by_method, key=lambda m: fmean(by_method[m]))}
        assert {len(values) for values in by_method.values()} <= {2}
    tested = {
        (row["folder"], row["method"])
        for row in read_csv(out / "scores.csv")
        if row["split"] == "test"
    }
    chosen = {str(results.chosen[line][1]) for line in results.lines}
    assert tested == {(run, method) for run in own_runs for method in chosen}
    assert (out / "tuning.png").stat().st_size > 5000
    # Both runs decide: the choice says something about either.
    for folder in own_runs:
        searches, page = report_of(folder)
        (cost,) = searches.values()
        assert list(searches) == ["../../out"]
        assert (cost["runs"], cost["points"]) == (2, 10)
        assert (cost["rho"], cost["rho_total"]) == (0.5, 1.0)
        assert cost["paragraph"] in page and cost["paragraph"] in report.text
        assert "10 ways" in page and "2 private runs" in page
        assert "points looked at: 10" in page
        assert "without privacy protection" in page
    # The same search again looks at nothing and says nothing new.
    before = files_of(tmp_path)
    looks.clear()
    again, _ = searched(options)
    assert again.chosen == {
        line: results.chosen[results.line(*line.key)] for line in again.lines
    }
    assert looks == [] and files_of(tmp_path) == before


def test_a_report_names_what_is_there(own_runs, tmp_path):
    options = TuneOptions(
        runs=own_runs, out=str(tmp_path / "out"), methods=parse_methods("uta:2,3"),
        examples=20,
    )  # fmt: skip
    searched(options)
    for folder in own_runs:
        searches, _ = report_of(folder)
        assert len(searches) == 1
        assert all((pathlib.Path(folder) / name).is_dir() for name in searches)


def test_a_search_that_ended_before_it_was_told_is_told_by_the_next(
    own_runs, tmp_path, monkeypatch
):
    options = TuneOptions(
        runs=own_runs, out=str(tmp_path / "out"), methods=parse_methods("uta:2,3"),
        examples=20,
    )  # fmt: skip
    with monkeypatch.context() as broken:
        broken.setattr(tune.cost, "add_to_reports", lambda *a: None)
        searched(options)
    assert not any(report_of(folder)[0] for folder in own_runs)
    searched(options)
    for folder in own_runs:
        (cost,) = report_of(folder)[0].values()
        assert (cost["runs"], cost["points"]) == (2, 3)


def test_inference_over_one_run_is_post_processing_and_counts_every_point(
    own_runs, tmp_path
):
    run = own_runs[0]
    chosen = privacy.training_search(0.5, 1e-6, runs=6)
    privacy.add_search(run, "elsewhere", chosen)

    def search(methods):
        searched(
            TuneOptions(
                runs=(run,), out=str(tmp_path / "out"), examples=20,
                methods=parse_methods(methods),
            )
        )  # fmt: skip
        return report_of(run)

    searches, page = search("uta:2")
    found = searches["../../out"]
    assert (found["runs"], found["points"], found["rho_total"]) == (1, 2, 0.5)
    assert "post-processing" in found["paragraph"]
    # That the run itself was chosen among others is not forgotten.
    assert searches["elsewhere"] == chosen.to_json() and chosen.paragraph in page
    assert "takes its place" in page
    # Another grid in the same place: what was looked at before still counts.
    searches, page = search("uta:3,4")
    assert searches["../../out"]["points"] == 4
    assert len(searches) == 2 and "points looked at: 2." not in page


def test_a_larger_grid_says_how_often_the_test_data_were_looked_at(
    token_store, tmp_path
):
    run = write_run(tmp_path / "run", token_store, 3, noise_multiplier=1.0)

    def search(methods):
        return searched(
            TuneOptions(
                runs=(run,), out=str(tmp_path / "out"), examples=_SENTENCES,
                methods=parse_methods(methods), series="iterate",
            ),
            ByLoss,
        )  # fmt: skip

    first, _ = search("uta:2")
    results, report = search("uta:2,8")
    (line,) = (line for line in results.lines if line.name == "UTA_inf")
    (before,) = (line for line in first.lines if line.name == "UTA_inf")
    assert str(first.chosen[before].method) == "uta:2"
    assert str(results.chosen[line].method) == "uta:8"
    assert "looked at for 2 candidates of UTA_inf" in report.text


class ByLoss(StackOverflow):
    metrics = tuple(reversed(StackOverflow.metrics[:3]))


def test_a_loss_is_tuned_downwards_and_a_worse_one_is_no_gain(token_store, tmp_path):
    run = write_run(tmp_path / "run", token_store, 3)
    options = TuneOptions(
        runs=(run,), out=str(tmp_path / "out"), examples=_SENTENCES,
        methods=parse_methods("uta:2,8"), series="iterate",
    )  # fmt: skip
    results, report = searched(options, ByLoss)
    last, line, _ = results.lines
    tried = {m: v for _, m, (v,) in results.candidates(line)}
    assert results.chosen[line].validation == min(tried.values())
    rows = {row[0]: row for row in report.tables["table"].rows}
    (was,), (value,) = results.values(last), results.values(line)
    assert rows["UTA_inf"][-1].startswith("+" if value < was else "-")


def test_a_report_that_cannot_be_written_is_told(own_runs, tmp_path, monkeypatch):
    options = TuneOptions(
        runs=own_runs[:1], out=str(tmp_path / "out"), methods=parse_methods("uta:2"),
        examples=20,
    )  # fmt: skip

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(privacy, "add_search", full)
    with pytest.raises(blobs.StoreError, match=r"privacy report.*disk is full"):
        searched(options)


# Algorithm 2.

_TINY = (
    "--rounds=6 --noise_multiplier=1 --batch_size=50 --learning_rate=1 "
    "--evaluate_every=3 --validation_examples=30 --test_examples=30"
)


def search_of(out, **changes):
    values = {
        "algorithm": "training",
        "out": str(out),
        "parameters": (2, 3, 5),
        "train_flags": _TINY,
        "examples": 30,
    }
    return TuneOptions(**(values | changes))


def folders_of(out):
    return sorted((pathlib.Path(out) / "runs").iterdir())


def test_training_runs_each_point_and_tests_the_chosen_one_once(tmp_path, drawn):
    options = search_of(tmp_path, parameters=(2, 3), starts=(0, 4))
    results, report = searched(options, Tiny)
    (line,) = results.lines
    assert len(folders_of(tmp_path)) == len(results.candidates(line)) == 4
    assert line.name == "UTA_tr" and results.looks(line) == 1
    assert drawn.count("test") == 1
    settings, method, validation = results.chosen[line]
    assert str(method) == "last" and set(settings) == {"k", "start_round"}
    tried = {str(s): value for s, _, (value,) in results.candidates(line)}
    assert validation == max(tried.values()) == tried[str(settings)]
    rows = read_csv(tmp_path / "candidates.csv")
    (chosen,) = (row for row in rows if row["chosen"] == "1")
    assert float(chosen["accuracy"]) == validation
    assert "test accuracy" in report.shown()
    assert list(report.figures) == ["tuning"]
    assert list(tmp_path.rglob("test.csv")) == []
    # Again: nothing runs, no data are drawn, nothing differs.
    before = files_of(tmp_path)
    drawn.clear()
    searched(options, Tiny)
    assert drawn == [] and files_of(tmp_path) == before


def failing(monkeypatch, when):
    """Lets trials fail in round 3 of whatever `when` says of their configuration."""
    record = recording.Recorder.record

    def fail(self, report):
        if report.round == 3 and when(self._config):
            raise RuntimeError("a machine died")
        return record(self, report)

    monkeypatch.setattr(recording.Recorder, "record", fail)


def test_a_search_with_failed_trials_goes_on_before_it_tests(
    tmp_path, drawn, monkeypatch
):
    options = search_of(tmp_path)
    with monkeypatch.context() as broken:
        failing(broken, lambda config: config.k == 5)
        with pytest.raises(TrialsFailedError, match=r"k=5.*not looked at.*died"):
            searched(options, Tiny)
    assert "test" not in drawn
    results, _ = searched(options, Tiny)
    (line,) = results.lines
    assert len(results.candidates(line)) == 3 and results.values(line)
    assert drawn.count("test") == 1


def test_a_search_ends_without_what_fails_twice_and_stays_as_it_ended(
    tmp_path, drawn, monkeypatch
):
    options = search_of(tmp_path)
    with monkeypatch.context() as broken:
        failing(broken, lambda config: config.k == 5)
        with pytest.raises(TrialsFailedError):
            searched(options, Tiny)
        results, _ = searched(options, Tiny)
    assert len(results.candidates(results.lines[0])) == 2
    assert drawn.count("test") == 1
    # The machine is well again; the search has ended all the same.
    again, _ = searched(options, Tiny)
    assert len(again.candidates(again.lines[0])) == 2 and drawn.count("test") == 1
    # Three runs were begun, and all of them were looked at.
    for folder in folders_of(tmp_path):
        searches, page = report_of(folder)
        assert searches["../.."]["runs"] == 3 and "runs looked at: 3" in page


def test_a_search_that_is_broken_off_has_told_the_trials_so_far(tmp_path, monkeypatch):
    record = recording.Recorder.record

    def stop(self, report):
        if self._config.k == 5:
            raise KeyboardInterrupt
        return record(self, report)

    monkeypatch.setattr(recording.Recorder, "record", stop)
    with pytest.raises(KeyboardInterrupt):
        searched(search_of(tmp_path), Tiny)
    told = [report_of(folder)[0] for folder in folders_of(tmp_path)]
    assert sorted(found["../.."]["runs"] for found in told if found) == [2, 2]


def test_runs_without_noise_are_counted_too(tmp_path):
    quiet = _TINY.replace("multiplier=1", "multiplier=0")
    searched(search_of(tmp_path, parameters=(2, 3), train_flags=quiet), Tiny)
    for folder in folders_of(tmp_path):
        searches, page = report_of(folder)
        assert searches["../.."]["runs"] == 2
        assert "2 runs, of which at least one has no guarantee" in page


def test_a_trial_is_the_run_that_train_would_make(tmp_path):
    """The flags are those of `train`; what is published is the run's own model."""
    known = f"{_TINY} --seed=3 --insecure_noise_seed=4"
    results, _ = searched(search_of(tmp_path, parameters=(2,), train_flags=known), Tiny)
    config = tiny_samples.config(
        rounds=6, evaluate_every=3, seed=3, insecure_noise_seed=4, averager="uta", k=2,
        validation_examples=30, test_examples=30,
    )  # fmt: skip
    outcome = training.run(Tiny(config), tmp_path / "alone")
    (line,) = results.lines
    wanted = outcome.test["aggregate"]["all"]["accuracy"]
    assert results.values(line) == [wanted]


# What is asked for.


def options(*given):
    (read,) = command_lines.options(StackOverflow, "tune", *given)
    return read


def test_the_papers_grids():
    found = Grids()
    assert found.ks[:5] == (2, 3, 5, 10, 20) and found.ks[-1] == 200
    assert len(found.ks) == 23
    assert found.training_betas[0] == 0.5 and len(found.training_betas) == 10
    assert found.inference_betas[0] == 0.85 and found.inference_betas[-1] == 0.9999
    assert found.starts == (0,)


def test_the_papers_grid_is_searched_where_none_is_given():
    found = tune.candidates(Pcvr, None, ())
    by_kind = {m.kind: [n.value for n in found if n.kind == m.kind] for m in found}
    assert by_kind == {
        "last": [None], "uta": [3, 5], "ema": [*INFERENCE_BETAS], "opa": [3, 5]
    }  # fmt: skip
    assert Method("omv", 3) in tune.candidates(StackOverflow, None, ())


def points(task, *given):
    (read,) = command_lines.options(task, "tune", "--algorithm=training", *given)
    (shared, *_) = flags.parse(read.train_flags.split(), task.Config)
    return tune.settings_of(task, read, shared)


def test_the_points_of_training():
    private = "--train_flags=--epsilon=8"
    found = points(StackOverflow, private, "--averager=ema", "--starts=0,5")
    assert len(found) == 2 * len(TRAINING_BETAS)
    assert found[0] == {"ema_decay": 0.5, "start_round": 0}
    weighted = ("--averager=ema", "--ema_convention=weight")
    weight = points(StackOverflow, private, *weighted)
    assert weight[0] == {"ema_weight": 0.5, "start_round": 0}
    found = points(StackOverflow, private)
    assert found == [{"k": k, "start_round": 0} for k in KS]


def test_the_grid_of_a_task_follows_from_the_flags_of_its_runs():
    def starts(*train_flags):
        found = points(Cifar, f"--train_flags={' '.join(train_flags)}")
        return tuple(dict.fromkeys(point["start_round"] for point in found))

    network = "--dataset=cifar10 --model=wide_resnet"
    assert starts(network, "--rounds=568", "--noise_multiplier=8") == (
        100, 200, 300, 400, 500,
    )  # fmt: skip
    # τ* is below T; the number of steps may follow from ε.
    assert starts(network, "--rounds=500", "--noise_multiplier=8")[-1] == 400
    assert starts(network, "--epsilon=1", "--noise_multiplier=8")[-1] == 600
    assert starts("--dataset=cifar100", "--rounds=250", "--noise_multiplier=21") == (
        50, 100, 150, 200, 250,
    )  # fmt: skip
    clicks = "--train_flags=--synthetic --rounds=9 --noise_multiplier=1"
    assert [p["k"] for p in points(Pcvr, clicks)] == [3, 5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--starts=3"], "--starts=.*needs algorithm=training; it is inference"),
        (["--algorithm=training", "--methods=opa:3"], "--runs needs algorithm=inf"),
        (["--methods=ota:3"], "ota:3.* one of last, uta:k, .*such as uta:100"),
        (["--examples=0"], "examples must be at least 1; got 0"),
        (["--processes=2", "--address=a:1"], "processes must be 1 with address"),
    ],
)
def test_flags_that_change_nothing_or_mean_nothing_are_refused(given, message):
    with pytest.raises((ValueError, IllegalFlagValueError), match=message):
        options("--runs=a", *given)


def test_flags_that_train_has_not_are_refused(tmp_path):
    wrong = search_of(tmp_path, train_flags="--out=elsewhere")
    with pytest.raises(ValueError, match=r"train_flags=.*out"):
        tune.declare(Tiny, wrong)


def test_what_is_left_of_a_search_is_listed(tmp_path, capsys):
    assert tune.run(Tiny, search_of(tmp_path, dry_run=True)) == 0
    text = capsys.readouterr().out
    assert text.count("UTA_tr") == 3 and "k=5" in text
    assert not (tmp_path / "runs").exists()
