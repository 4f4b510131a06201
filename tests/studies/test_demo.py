"""The demo: every combination is trained, and the table is honest."""

import dataclasses
import hashlib
import math

import pytest

from stackoverflow.studies import demo, demo_search
from stackoverflow.studies.demo import LINES, SETTINGS, UTA_INF, Demo
from tests.golden import compare
from tests.study.tiny_studies import Told
from tff_agg.checkpoints import CheckpointStore
from tff_agg.experiment.run import tables
from tff_agg.experiment.study import show
from tff_agg.experiment.study.search import perform, results
from tff_agg.recycling.series import ALWAYS_THE_SAME

BASELINE, *OTHERS = LINES


def told(store, out, gains):
    """A demo in which every line differs from the baseline by the given points."""
    options = Demo(store=store, out=str(out), seeds=len(gains), rounds=20)
    study = demo.declare(options)
    base = {
        setting: study.line(setting, BASELINE).arm.grid[0]["server_learning_rate"]
        for setting in SETTINGS
    }

    def value(config, series, method, split):
        setting = "periodic shift" if config.pds else "original"
        is_base = config.server_learning_rate == base[setting]
        is_base = is_base and series == "aggregate" and config.averager == "last"
        return 0.2 + (not is_base) * gains[config.seed] / 100

    found = perform(dataclasses.replace(study, train=Told(value)), out)
    return options, found


def test_a_gain_in_all_seeds_stands_clear(token_store, tmp_path):
    _, found = told(token_store, tmp_path, [1.0, 1.1, 0.9])
    lines = demo.verdicts(found)
    assert len(lines) == len(SETTINGS) * len(OTHERS)
    assert all("+1.00 points" in line and "stands clear" in line for line in lines)


def test_a_gain_in_one_seed_does_not(token_store, tmp_path):
    _, found = told(token_store, tmp_path, [3.0, -1.0, -1.5])
    assert all("within the spread" in line for line in demo.verdicts(found))


def test_a_loss_is_called_a_loss(token_store, tmp_path):
    _, found = told(token_store, tmp_path, [-1.0, -1.1, -0.9])
    line, *_ = demo.verdicts(found)
    assert "-1.00 points" in line and "stands clear" in line


def test_two_seeds_are_too_few(token_store, tmp_path):
    _, found = told(token_store, tmp_path, [1.0, 1.1])
    lines = demo.verdicts(found)
    assert len(lines) == len(SETTINGS)
    assert all("2 seeds are too few" in line for line in lines)


def test_the_table_has_a_row_for_every_combination(token_store, tmp_path):
    options, found = told(token_store, tmp_path, [1.0, 1.0, -0.5])
    made = demo.report(options, found)
    header, (*rows, always), _, marked = made.tables["table"]
    assert always[0] == ALWAYS_THE_SAME
    assert [row[:2] for row in rows] == [[s, m] for s in SETTINGS for m in LINES]
    assert rows[0][2:] == ["20.00 ± 0.00", "", ""]
    assert rows[1][2:] == ["20.50 ± 0.87", "+0.50 ± 0.50", "2 of 3"]
    assert all(len(row) == len(header) for row in rows)
    assert not marked
    values = show.render(made.data["table"], "csv").splitlines()
    assert len(values) == 1 + 3 * len(rows)


def test_gains_that_stand_clear_are_marked(token_store, tmp_path):
    options, found = told(token_store, tmp_path, [1.0, 1.1, 0.9])
    made = demo.report(options, found)
    assert made.tables["table"].marked == {(r, 3) for r in (1, 2, 3, 5, 6, 7)}
    made.write(tmp_path)
    assert "| **+1.00 ± 0.06** | 3 of 3 |" in (tmp_path / "table.md").read_text()
    assert "* +1.00 ± 0.06" in made.shown()
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"rounds": 0}])
def test_sizes_are_checked(bad):
    with pytest.raises(ValueError, match="at least 1"):
        Demo(**bad)


def test_an_unknown_setting_is_named():
    with pytest.raises(ValueError, match=r"original, periodic shift.*windy"):
        Demo(settings=("original", "windy"))


def test_all_checkpoints_stay_for_the_means_over_them():
    """By default a run of 600 rounds keeps every tenth of the older ones."""
    for line in demo.declare(Demo()).lines:
        assert line.arm.config.rounds == 600 and line.arm.config.keep_last == 0


def test_a_run_is_judged_by_its_last_period():
    config = Demo(rounds=230).config("original")
    assert demo.in_last_period(config) == (140, 160, 180, 200, 220, 230)
    assert UTA_INF.methods[0].value == demo.PERIOD


def test_trainings_with_equal_settings_run_once(monkeypatch):
    same = {"averager": "last", "server_learning_rate": 0.5}
    chosen = {"baseline": same, "for UTA_inf": dict(same), "schedule-free": {"k": 2}}
    monkeypatch.setattr(demo, "TRAININGS", {"original": chosen})
    study = demo.declare(Demo(settings=("original",), seeds=2))
    trials = {
        trial
        for line in study.lines
        for trial in study.trials(line, line.arm.grid[0], study.seeds)
    }
    assert len(trials) == 4
    assert [line.name for line in study.lines] == [BASELINE, OTHERS[0], OTHERS[2]]


def test_two_runs_go_side_by_side_and_those_of_one_training_in_one_process():
    options = Demo()
    study = demo.declare(options)
    assert options.processes == 2
    near = {
        study.near(trial)
        for line in study.lines
        for trial in study.trials(line, line.arm.grid[0], study.seeds)
    }
    assert len(near) == 6


def test_the_title_claims_no_privacy_for_known_seeds():
    config = Demo(rounds=8).config("original", insecure_noise_seed=1000)
    plan = config.build_plan()
    assert demo.noise_in_words(plan) == "noise of ε = 8, known seed"
    secret = dataclasses.replace(config, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(secret) == "user-level ε = 8 at δ = 1e-06"
    silent = dataclasses.replace(config, epsilon=None, noise_multiplier=0.0)
    silent = dataclasses.replace(silent, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(silent) == "privacy: none: no noise is added"


def test_every_arm_of_the_search_has_six_candidates_and_what_was_chosen_is_one():
    study = demo_search.declare(demo_search.DemoSearch())
    assert study.final is None and study.search_seeds == (100, 101)
    candidates = {}
    for line in study.lines:
        assert len(line.arm.grid) == 6
        for settings in line.arm.grid:
            own = dataclasses.replace(line.arm.config, **settings)
            candidates.setdefault(line.row, set()).add(own)
    for setting, trainings in demo.TRAININGS.items():
        base = demo_search.DemoSearch().config(setting)
        for training in trainings.values():
            assert dataclasses.replace(base, **training) in candidates[setting]


def test_the_search_shows_the_best_of_each_arm_by_either_use(token_store, tmp_path):
    options = demo_search.DemoSearch(
        store=token_store, out=str(tmp_path), arms=("baseline",), rounds=20
    )

    def value(config, series, method, split):
        assert split == "heldout"
        wanted = 0.25 if series == "aggregate" else 0.5
        gain = 0.1 * (config.server_learning_rate == wanted)
        gain += 0.01 * (config.server_momentum == 0.9)
        return 0.2 + gain + 0.02 * (config.seed - 100)

    study = dataclasses.replace(demo_search.declare(options), train=Told(value))
    made = demo_search.report(options, perform(study, tmp_path))
    table = made.tables["demo_search"]
    # The last is always the same answer.
    assert len(table.rows) == 12 + 1
    assert table.marked == {(0, 3), (1, 4), (6, 3), (7, 4)}
    best = "server_momentum=0.9 server_learning_rate=0.25"
    row = ["original", "baseline", best, "32.00 ± 1.41", "22.00 ± 1.41"]
    assert table.rows[0] == row
    header, first, *_ = show.render(made.data["demo_search"], "csv").splitlines()
    with open(compare.HERE.parents[1] / "docs" / "demo_search.csv") as file:
        assert header == file.readline().strip()
    assert first == f"original,baseline: broadcast,{best},last,1,100,0.31,,,"


# Against the figures of the code before there was one way to make a study.


def row(line, seed, split, number, value):
    return (line, str(seed), split, str(number), "accuracy"), repr(float(value))


def released(name, folder):
    store = CheckpointStore(folder / "checkpoints")
    for number in (0, 1, 20, 40):
        for series in ("iterate", "aggregate"):
            digest = hashlib.sha256()
            for value in store.load(number, series).values():
                digest.update(value.tobytes())
            yield (f"released {name}", "0", "", str(number), series), digest.hexdigest()


@pytest.mark.slow
def test_the_figures_are_those_of_the_demo_before(tmp_path, capsys, monkeypatch):
    # A rate that was chosen for another use makes no other kind of line.
    lines = {name: line for name, line in LINES.items() if line[0] != "for UTA_inf"}
    monkeypatch.setattr(demo, "LINES", lines)
    options = Demo(
        out=str(tmp_path), settings=("periodic shift",), seeds=1, rounds=40,
        users=2600, processes=1,
    )  # fmt: skip
    assert demo.command(demo.StackOverflow).run(options) == 0
    shown = capsys.readouterr().out
    assert "noise of ε = 8, known seed" in shown and "too few" in shown
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
    options = options.prepared()
    study = demo.declare(options)
    found = results(study, tmp_path)
    assert [line.name for line in found.lines] == list(lines)
    figures = {}
    for line in found.lines:
        name = f"{line.row}: {line.name}"
        curve = found.curve(line)
        for seed, value in enumerate(found.values(line)):
            figures |= [row(name, seed, "test", "mean", value)]
            at = zip(curve.rounds, curve.values[seed], strict=True)
            figures |= dict(row(name, seed, "heldout", *point) for point in at)
        arm, _ = LINES[line.name]
        for seed, folder in enumerate(found.folders(line)):
            run = f"{line.row} {arm} {seed}".replace(" ", "_").replace("-", "_")
            figures |= dict(released(run, folder))
    assert compare.differences(figures, compare.golden("demo")) == {}
    plan = found.config(found.lines[0]).build_plan()
    assert plan.nominal_epsilon <= 8 and plan.epsilon == math.inf
    folder, *_ = found.folders(found.lines[0])
    clients = tables.read_columns(folder / "metrics.csv")["question_clients"]
    assert clients[0] == 25, "the shift begins with questions only"
    # Every checkpoint is there to be recycled.
    store = CheckpointStore(folder / "checkpoints")
    assert store.rounds("iterate") == list(range(41))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")}
    again = perform(study, tmp_path)
    assert [again.values(line) for line in again.lines] == [
        found.values(line) for line in found.lines
    ]
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")}
