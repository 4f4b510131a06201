"""The pCVR table: arms, the two stages of the paper, probes, at a tiny size."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from pcvr import synthetic
from pcvr.studies import table
from pcvr.task import Pcvr
from tests.golden.compare import differences, golden
from tests.study.tiny_studies import Told
from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.study.declare import BROADCAST
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.methods import Method, parse_methods


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    path = tmp_path_factory.mktemp("clicks") / "clicks.parquet"
    pq.write_table(synthetic.clicks(3000), path)
    return str(path)


@pytest.fixture
def tiny(monkeypatch):
    """Makes the table one of seconds, as when its golden figures were written."""
    ema, uta = table._ema, table._uta
    tiny_sizes = {
        "SIZES": dict(table.SIZES) | {"rounds": 16, "batch_size": 100},
        "EXAMPLES": 200,
        "CURVE_EVERY": 4,
        "KEEP": Retention(keep_last=6, keep_every=2),
        "RATES": (2.0, 4.0),
        "SEARCH_SEEDS": (100,),
        "PROBES": {k: v for k, v in table.PROBES.items() if k != "rate 8"},
        "OWN_RATES": {
            table.EMA: [ema(0.5, 0, learning_rate=4.0)],
            table.UTA: [uta(3, 0, learning_rate=4.0), uta(3, 8, learning_rate=4.0)],
        },
        "SECOND_STAGE": {},
        "INFERENCE": parse_methods("ema:0.5,0.8 uta:3,6 opa:2,4"),
        "PROBED": parse_methods("uta:3 opa:2"),
    }  # fmt: skip
    for name, value in tiny_sizes.items():
        monkeypatch.setattr(table, name, value)


def figures(found):
    """Returns the figures of a table under the names that the golden ones have."""
    known = {}

    def note(line, seeds, split, values):
        for seed, value in zip(seeds, values, strict=True):
            known[line, str(seed), split, "16", "auc_loss"] = repr(value)

    scores = found.frame.rows(named=True)
    for line in found.lines:
        settings, method, _ = found.chosen[line]
        name = f"{method.facts.title} {float(method.value or 0)}"
        if line.use == BROADCAST:
            probed = {} if line.row == table.TABLE else dict(line.arm.grid[0])
            probed = {k: v for k, v in probed.items() if k == "learning_rate"}
            name = f"{table.BASELINE} {words(settings)}" if probed else None
            name = name or f"{line.name} {words(settings)}"
        note(f"{line.row}/{name}", found.seeds, "test", found.values(line))
        if line.row != table.TABLE:
            continue
        if line.use == BROADCAST:
            for candidate, _, values in found.candidates(line):
                name = f"tuning/{line.name} {words(candidate)}"
                note(name, table.SEARCH_SEEDS, "heldout", values)
            continue
        for row in scores:
            wanted = Method.parse(row["method"])
            if (
                wanted in line.use.methods
                and row["arm"] == table.BASELINE
                and row["settings"] == table.in_words(settings)
                and (row["split"], row["series"]) == ("heldout", "iterate")
                and row["metric"] == "auc_loss"
            ):
                name = f"tuning/{wanted.facts.title} {float(wanted.value)}"
                note(name, [row["seed"]], "heldout", [row["value"]])
    return known


def words(settings):
    shown = {
        k: v for k, v in settings.items() if k not in ("epsilon", "noise_multiplier")
    }
    if "averager" in shown:
        order = (
            "averager",
            "ema_decay",
            "k",
            "ema_warm_up",
            "learning_rate",
            "start_round",
        )
        shown = {k: shown[k] for k in order if k in shown}
        shown["learning_rate"] = int(shown["learning_rate"])
    return " ".join(f"{k}={v}" for k, v in shown.items())


@pytest.mark.slow
def test_the_figures_are_what_they_were(tiny, clicks, tmp_path):
    options = table.Table(data=clicks, seeds=1, out=str(tmp_path))
    study = table.declare(options)
    found = perform(study, tmp_path)
    assert differences(figures(found), golden("pcvr")) == {}
    curve = found.curve(found.line(table.TABLE, table.BASELINE))
    assert list(curve.rounds) == [4, 8, 12, 16]
    before = sorted((tmp_path / "scores").iterdir())
    assert table.command(Pcvr).run(options) == 0
    assert sorted((tmp_path / "scores").iterdir()) == before
    assert (tmp_path / "curves.png").stat().st_size > 1000
    written = (tmp_path / "table.md").read_text()
    assert "| no noise | UTA_inf 3 | UTA_inf 3 |" in written


def told(clicks, out, value, **changes):
    """Performs the study with told values."""
    study = table.declare(table.Table(data=clicks, out=str(out), **changes))
    return perform(
        dataclasses.replace(study, train=Told(value, metric="auc_loss")), out
    )


def lines_of(row=table.TABLE):
    study = table.declare(table.Table(data="x"))
    return {line.name: line for line in study.lines if line.row == row}


def test_arms_have_as_many_candidates_and_the_papers_windows():
    arms = {n: x for n, x in lines_of().items() if x.use == BROADCAST}
    assert len(arms) == 5
    assert {len(line.arm.grid) for line in arms.values()} == {4}
    for name, line in arms.items():
        if name.startswith(table.UTA):
            assert {s["k"] for s in line.arm.grid} == {*Pcvr.grids(line.arm.config).ks}


def test_in_the_second_stage_the_rate_is_the_baselines(clicks, tmp_path):
    def value(config, series, method, split):
        if config.averager == "last":
            return 0.3 + 0.01 * abs(config.learning_rate - 6.0)
        # A smaller rate would be better, and a later start is.
        return 0.3 + 0.001 * config.learning_rate - 1e-5 * config.start_round

    found = told(clicks, tmp_path, value, seeds=2)
    second = found.line(table.TABLE, "UTA_tr, the baseline's rate")
    assert found.chosen[second].settings == {
        "learning_rate": 6.0, "averager": "uta", "k": 3, "start_round": 700,
    }  # fmt: skip
    own = found.line(table.TABLE, table.UTA)
    assert found.chosen[own].settings["learning_rate"] == 4.0
    rates = {
        found.config(line).learning_rate for line in found.rows()["no noise"].values()
    }
    assert rates == {6.0}
    noises = [
        found.config(found.line(row, table.BASELINE)).noise_multiplier
        for row in ("no noise", "rate 8")
    ]
    assert noises == [0.0, None]


def test_gains_are_reductions_of_mean_and_spread_seed_by_seed(clicks, tmp_path):
    def value(config, series, method, split):
        swing = 0.01 if series == "aggregate" else 0.005
        return (0.4 if series == "aggregate" else 0.396) + swing * config.seed

    found = told(clicks, tmp_path, value, seeds=3)
    made = table.report(table.Table(data=clicks), found)
    rows = {tuple(row[:2]): list(row[2:]) for row in made.tables["table"].rows}
    # Means 0.41 and 0.401, deviations 0.01 and 0.005, differences 4, 9 and 14.
    assert rows[table.TABLE, "OPA"] == [
        "OPA 10", "0.40100 ± 0.00500", "+2.20 %", "+50.0 %", "3.1"
    ]  # fmt: skip
