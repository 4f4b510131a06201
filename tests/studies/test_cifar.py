"""The CIFAR tables: arms, choices, runs in lockstep, at a tiny size."""

import dataclasses
import pathlib

import numpy as np
import pytest

import cifar
from cifar import lockstep
from cifar.data import synthetic
from cifar.studies import (
    arms,
    error_bars,
    probes,
    side_by_side,
    table,
)
from cifar.task import Cifar, CifarConfig
from tests.golden.compare import differences, golden
from tests.study.tiny_studies import Told
from tff_agg.experiment.commands import flags
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Study,
    Use,
    in_words,
    known,
)
from tff_agg.experiment.study.scores import Key
from tff_agg.experiment.study.search import perform, results
from tff_agg.recycling.methods import LAST, Method, parse_methods

CONFIGS = pathlib.Path(cifar.__file__).parent / "configs"
CURVE = (LAST, Method("uta", 50))
PLAIN, AVERAGED = arms.plain(1.0), arms.uta(1.0, 3, 5)
USES = {"trained": BROADCAST, "last": Use(), "uta:3": Use(parse_methods("uta:3"))}


def keep(config):
    return (2, *range(4, 9))


def tiny(monkeypatch, dataset, noise):
    """Makes a level of seconds, as when the golden figures were written."""
    small = {
        "dataset": dataset, "synthetic": True, "batch_size": 256, "pds_period": 4
    }  # fmt: skip
    # Of equals the old code took the shortest, and of those the last.
    methods = parse_methods("ema:0.8,0.5 uta:5,3,2 opa:3,2 omv:3,2")
    level = arms.Level(8, noise, (4, 8), (1, 2), methods, 4, small)
    candidates = {
        arms.BASELINE: [arms.plain(1.0), arms.plain(4.0)],
        arms.EMA: [arms.ema(1.0, 0.5, 4), arms.ema(2.0, 0.8, 4)],
        arms.UTA: [arms.uta(1.0, 3, 5), arms.uta(2.0, 2, 5)],
    }
    monkeypatch.setattr(arms, "LEVELS", {"eps1": level})
    every = {("eps1", shift): candidates for shift in arms.SHIFTS}
    monkeypatch.setattr(arms, "CANDIDATES", every)


def declared(out, **changes):
    values = {"out": str(out), "seeds": 2, "data_dir": "", "levels": ("eps1",)}
    options = table.Table(**(values | changes))
    return options, table.declare(options)


def figures(found):
    """Returns the figures of a table under the names that the golden ones have."""
    known = {}
    scores = found._standing.scores
    for line in found.lines:
        settings, method, _ = found.chosen[line]
        known[line.row, "0", "", "", "settings"] = table.in_words(settings)
        if len(line.use.methods) > 1:
            known[f"{line.row}/{line.name}", "0", "", "", "chosen"] = str(method)
        for seed, value in enumerate(found.values(line)):
            name = f"{line.row}/{line.name}"
            known[name, str(seed), "test", "8", "accuracy"] = repr(value)
        run = found.runs(line)[0]
        for step in (4, 8) if arms.BASELINE in line.row else ():
            for method in CURVE:
                key = Key("iterate", str(method), step, "heldout", 1 << 30)
                value = scores.values(run, key)["accuracy"]
                name = f"{line.row} curve {method}"
                known[name, "0", "heldout", str(step), "accuracy"] = repr(value)
    for row in found.frame.rows(named=True):
        if (row["seed"], row["group"], row["metric"]) != (100, "all", "accuracy"):
            continue
        (settings,) = (
            table.in_words(s)
            for several in arms.CANDIDATES["eps1", "shift"].values()
            for s in several
            if in_words(s) == row["settings"]
        )
        name = "trained" if row["series"] == "aggregate" else row["method"]
        line = f"{row['row'].partition(':')[0]}: {settings}/{name}"
        known[line, "100", "heldout", "8", "accuracy"] = repr(row["value"])
    # Where the golden figures have another name for the level.
    return {
        (line.replace("eps1", "tiny"), *rest): v for (line, *rest), v in known.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dataset, noise, shift",
    [
        ("cifar", "cifar10", 0.5, arms.SHIFTS[0]),
        ("cifar_noisy", "cifar100", 1.0, arms.SHIFT),
    ],
)
def test_the_figures_are_what_they_were(
    monkeypatch, tmp_path, name, dataset, noise, shift
):
    tiny(monkeypatch, dataset, noise)
    options, study = declared(tmp_path, shifts=(shift,))

    wider = [
        Line(x.row, "curve", dataclasses.replace(x.arm, grid=({},)), Use(CURVE[1:]),
             like=x.key)
        for x in study.lines
        if x.arm.name == arms.BASELINE and x.name == "last"
    ]  # fmt: skip
    curves = dataclasses.replace(
        study, lines=(*study.lines, *wider), drawn=lambda *_: (4, 8)
    )
    found = perform(curves, tmp_path).only(study.lines)
    assert differences(figures(found), golden(name)) == {}
    assert found.seeds == (0, 1)
    # Those that are averaged, and those whose distance is found.
    kept = set(study.train.keep(found.config(found.lines[0])))
    assert kept >= {2, *range(4, 9)} and kept <= {*range(1, 9)}
    made = table.report(options, found)
    last = f"eps1 {shift}: DP-SGD, last"
    header, ratios, *_ = made.tables["widths"]
    assert header[2:] == [
        "last checkpoints", "2 rounds apart", "as far apart as found, widened"
    ]  # fmt: skip
    assert ratios[0][:2] == [last, "2"] and len(ratios) == 4
    (drawn,) = made.figures["widths"].args
    assert list(drawn) == [last]
    assert {row[1] for row in made.data["walk"].rows} == {1, 2, 3, 4, 6}


# Runs side by side.


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A plain run and one that is averaged from step 5 on, side by side."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        tiny(monkeypatch, "cifar100", 0.5)
        level = arms.LEVELS["eps1"]._replace(methods=parse_methods("uta:2,3 ema:0.5"))
        monkeypatch.setattr(arms, "LEVELS", {"eps1": level})
        base = arms.base("eps1", arms.SHIFT, "")
    out = tmp_path_factory.mktemp("pair")
    lines = [
        Line("row", f"{name}, {method}", Arm(name, base, (settings,)), use)
        for name, settings in (("plain", PLAIN), ("averaged", AVERAGED))
        for method, use in USES.items()
    ]
    study = Study(
        Cifar, tuple(lines), seeds=(3,), train=side_by_side.lockstep(keep),
        seeding=known(0), examples=table.EVERYTHING, near=side_by_side.alike,
    )  # fmt: skip
    return perform(study, out), study


def test_a_run_is_judged_by_its_own_checkpoints(pair):
    found, _ = pair

    def value(name):
        return found.values(found.line("row", name))[0]

    def checkpoints(name):
        (run,) = found.runs(found.line("row", f"{name}, last"))
        return side_by_side.checkpoints(found.out, run)

    plain, averaged = checkpoints("plain"), checkpoints("averaged")
    assert sorted(plain) == [2, 4, 5, 6, 7, 8]
    assert value("plain, trained") == value("plain, last") == accuracy(plain[8])
    assert value("plain, uta:3") == accuracy(mean(plain, [6, 7, 8]))
    assert value("averaged, last") == accuracy(averaged[8])
    # From the aggregate: the mean of the last three iterates.
    assert value("averaged, trained") == accuracy(mean(averaged, [6, 7, 8]))
    # The same run until the average is used; another one from there.
    np.testing.assert_array_equal(plain[5]["kernel"], averaged[5]["kernel"])
    assert np.abs(plain[6]["kernel"] - averaged[6]["kernel"]).max() > 1e-4


def test_what_is_there_is_not_computed_again(pair, monkeypatch):
    found, study = pair
    side_by_side._built.cache_clear()
    monkeypatch.setattr(lockstep, "Lockstep", None)
    again = perform(study, found.out)
    assert [again.values(x) for x in again.lines] == [
        found.values(x) for x in found.lines
    ]
    with pytest.raises(TypeError):
        perform(dataclasses.replace(study, seeds=(4,)), found.out)


def accuracy(weights):
    task = Cifar(
        CifarConfig(dataset="cifar100", synthetic=True, rounds=1, noise_multiplier=1.0)
    )
    rows = task.flat_sample(task.fixed_sample("test", 1 << 30))
    found = task.predictor()(weights, rows)
    return np.mean(found.scores.argmax(axis=1) == found.targets)


def mean(checkpoints, steps):
    names = checkpoints[steps[0]]
    return {n: np.mean([checkpoints[s][n] for s in steps], axis=0) for n in names}


# What the arms choose from.


def row(name):
    (config,) = flags.parse([f"--flagfile={CONFIGS / name}.cfg"], CifarConfig)
    return config


OF_ARMS = ((arms.BASELINE, "baseline"), (arms.EMA, "ema"), (arms.UTA, "uta"))
AVERAGE = ("learning_rate", "averager", "k", "ema_decay", "pds")


@pytest.mark.parametrize("shift", arms.SHIFTS)
@pytest.mark.parametrize("level", arms.LEVELS)
def test_arms_choose_from_as_many_and_the_papers_is_the_first(level, shift):
    several = arms.CANDIDATES[level, shift]
    assert len({len(candidates) for candidates in several.values()}) == 1
    data, _, epsilon = level.rpartition("_")
    small = data == "cifar10"
    prefix = ("c10" if small else "c100") + "_pds" * (shift == arms.SHIFT)
    fields = AVERAGE
    if not small:
        fields += ("start_round", "rounds", "noise_multiplier")
        fields += ("batch_size", "clip_norm")
    for arm, name in OF_ARMS:
        names = [table.in_words(settings) for settings in several[arm]]
        assert len(set(names)) == len(names)
        config = arms.base(level, shift, "")
        ours = dataclasses.replace(config, **several[arm][0])
        wanted = row(f"{prefix}_{name}_{epsilon}")
        for field in fields:
            assert getattr(ours, field) == getattr(wanted, field), (arm, field)
        assert not small or f"eps{ours.epsilon:g}" == epsilon
    if small:
        rates = [{one["learning_rate"] for one in several[arm]} for arm in several]
        assert rates[0] == rates[1] == rates[2]


def test_runs_of_a_seed_are_one_job_and_others_are_not():
    _, study = declared("x", levels=("eps1", "cifar10_eps8"))
    trials = [
        trial
        for line in study.lines
        for settings in line.arm.grid
        for trial in study.trials(line, settings, (100, 101))
    ]
    jobs = {study.near(trial) for trial in trials}
    assert len(jobs) == 2 * 2 * 2  # levels, with and without shift, seeds
    assert {trial.config.seed for trial in trials} == {100, 101}
    assert all(t.config.seed == t.config.insecure_noise_seed for t in trials)


# What is chosen, and shown.


def told(monkeypatch, out, value, seeds=3, **changes):
    tiny(monkeypatch, "cifar100", 0.5)
    options, study = declared(out, seeds=seeds, **changes)
    train = Told(value)
    found = perform(dataclasses.replace(study, train=train), out)
    return options, found, train


def test_last_and_recycled_have_a_choice_each(monkeypatch, tmp_path):
    values = {
        1.0: {"last": 0.5, "uta:5": 0.5, "uta:3": 0.4, "opa:3": 0.2},
        4.0: {"last": 0.4, "uta:5": 0.5, "uta:3": 0.6, "opa:3": 0.2},
    }

    def value(config, series, method, split):
        return values.get(config.learning_rate, {}).get(method, 0.1)

    _, found, train = told(monkeypatch, tmp_path, value, shifts=("original",))

    def chosen(line, column):
        settings, method, _ = found.chosen[found.line(f"eps1 original: {line}", column)]
        return settings["learning_rate"], str(method)

    assert chosen(table.LAST_ITERATE, "UTA_inf") == (1.0, "uta:5")
    assert chosen(table.RECYCLED, "UTA_inf") == (4.0, "uta:3")
    assert chosen(table.RECYCLED, "OPA") == (4.0, "opa:3")
    assert chosen(table.RECYCLED, "EMA_baseline") == (4.0, "ema:0.9999")
    # The test data see what was chosen, and nothing else.
    tested = {
        (config.learning_rate, str(method))
        for config, question in train.asked
        if question.split == "test" and config.averager == "last"
        for method in question.methods
        if method.facts.title == "UTA_inf"
    }
    assert tested == {(1.0, "uta:5"), (4.0, "uta:3")}
    # Curves are those of the chosen methods of what is recycled.
    drawn = {
        (config.learning_rate, str(method))
        for config, question in train.asked
        if question.rounds == (4, 8) or question.rounds == (4,)
        for method in question.methods
    }
    assert drawn == {(4.0, m) for m in ("last", "ema:0.9999", "ema:0.8", "uta:3",
                                        "opa:3", "omv:3")}  # fmt: skip


def test_gains_are_those_on_the_last_iterate_of_the_same_seeds(monkeypatch, tmp_path):
    def value(config, series, method, split):
        better = 0.02 * (config.averager == "uta" and series == "aggregate")
        return 0.4 + 0.1 * (config.seed % 100) + better

    options, found, _ = told(monkeypatch, tmp_path, value)
    made = table.report(options, found)
    shown = made.tables["eps1_shift"]
    assert shown.header[:4] == ["line", "chosen", "trained", "last"]
    lines = {
        r[0]: (r, below)
        for r, below in zip(shown.rows[::2], shown.rows[1::2], strict=True)
    }
    values, gains = lines[arms.UTA]
    # Seed by seed it is clear, whatever the spread over seeds.
    assert values[1:3] == ["η=1 k=3 τ=5", "52.00 ± 10.00"]
    assert gains[2] == "+2.00 ± 0.00"
    assert shown.marked == {(shown.rows.index(gains), 2)}
    assert lines[table.LAST_ITERATE][1][2] == ""
    assert "(5)" in values[shown.header.index("UTA_inf")]
    every = [tuple(r) for r in made.data["eps1_shift"].rows]
    assert len(every) == 4 * 7 * 3
    assert (arms.UTA, "η=1 k=3 τ=5", "UTA_inf", "uta:5", 0, 0.4) in every


def test_four_panels_are_drawn_and_an_unfinished_level_is_left_out(
    monkeypatch, tmp_path
):
    def value(config, *_):
        return 0.4 + 0.01 * config.seed % 100

    *_, train = told(monkeypatch, tmp_path, value, seeds=2, shifts=("shift",))
    both, study = declared(tmp_path, seeds=2)
    partly = results(dataclasses.replace(study, train=train), tmp_path)
    made = table.report(both, partly)
    assert list(made.tables) == ["eps1_shift"]
    made.figures["curves"](tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    curve = partly.curve(partly.line(f"eps1 shift: {table.RECYCLED}", "last"))
    assert list(curve.rounds) == [4, 8] and len(curve.values) == 2


def test_probes_are_judged_on_validation_data_alone(monkeypatch, tmp_path):
    study = probes.declare(probes.Probes(probes=("no noise",), data_dir="x"))
    monkeypatch.setattr(Cifar, "open_data", lambda self: synthetic("cifar100", (8,)))
    train = Told(lambda *_: 0.3)
    found = perform(dataclasses.replace(study, train=train), tmp_path)
    assert {question.split for _, question in train.asked} == {"heldout"}
    assert {config.noise_multiplier for config, _ in train.asked} == {0.0}
    made = probes.report(probes.Probes(), found)
    assert [row[:3] for row in map(list, made.tables["probes"].rows)][:3] == [
        ["no noise", "η=2", "trained"],
        ["no noise", "η=2", "last"],
        ["no noise", "η=2", "UTA_inf 5"],
    ]


# Uncertainty.


def test_checkpoints_that_vary_like_runs_have_a_ratio_of_one():
    generator = np.random.default_rng(0)
    centre = generator.dirichlet(np.ones(4), size=200)
    separations, last = (1, 10), 50

    def run():
        # A walk: ten steps apart is √10 times as far as one.
        noise = 0.001 * generator.standard_normal((last + 1, 200, 4)).cumsum(axis=0)
        # Far apart from other runs by ten times a single step.
        start = 0.01 * generator.standard_normal((200, 4))
        return {step: centre + start + noise[step] for step in range(last + 1)}

    found = error_bars.of_scores([run() for _ in range(5)], last, separations)
    near, far = found["last checkpoints"], found["10 rounds apart"]
    assert near.sizes == far.sizes == (2, 3, 4, 5)
    assert near.ratio[0] > 2 * far.ratio[0] > 2
    independent = [
        {s: centre + 0.01 * generator.standard_normal((200, 4)) for s in range(51)}
        for _ in range(5)
    ]
    (only,) = error_bars.of_scores(independent, last, [1]).values()
    np.testing.assert_allclose(only.ratio, 1, atol=0.2)


@pytest.mark.parametrize("period", [1, 20])
def test_walks_have_about_the_bars_of_runs_where_nobody_says_how_far_apart(period):
    generator = np.random.default_rng(0)
    centre, last = generator.dirichlet(np.ones(4), size=200), 240

    def run():
        walk = 0.001 * generator.standard_normal((last + 1, 200, 4)).cumsum(axis=0)
        # Under a shift predictions swing, and come back: that is no noise.
        swing = 0.05 * np.abs(np.arange(last + 1) % period / period - 0.5)
        moved = centre + walk + swing[:, None, None] * [1, -1, 0, 0]
        return dict(enumerate(moved))

    runs = [run() for _ in range(5)]
    found, near = error_bars.of_scores(runs, last, [0, 1], period).values()
    # A walk of so few predictions looks a little like a long memory.
    assert ((found.ratio > 0.6) & (found.ratio < 2)).all()
    assert (near.ratio > 1.5 * found.ratio).all()


def test_a_walk_is_told_from_what_is_pulled_back():
    generator = np.random.default_rng(0)
    steps = 0.1 * generator.standard_normal((50, 2000))
    free, pulled = {0: {"w": np.zeros(2000)}}, {0: {"w": np.zeros(2000)}}
    for number, step in enumerate(steps, 1):
        free[number] = {"w": free[number - 1]["w"] + step}
        pulled[number] = {"w": 0.5 * pulled[number - 1]["w"] + step}
    found = error_bars.walk(free, 0.01)
    np.testing.assert_allclose([found[1], found[49]], 1, atol=0.15)
    assert error_bars.walk(pulled, 0.01)[49] < 0.1
    level = arms.Level(10, 3.0, (), ())
    assert level.step_variance(2.0) == pytest.approx((6 / arms.BATCH) ** 2)
