"""A configuration is complete, frozen and refuses what cannot be meant."""

import dataclasses
import json
import math
import pathlib

import pytest

import stackoverflow
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tests import command_lines, tiny_stores
from tff_agg import averaging
from tff_agg.experiment import config as configs
from tff_agg.experiment import presets
from tff_agg.experiment.run import identity
from tff_agg.privacy import recipe
from tff_agg.privacy.signal import Signal
from tff_agg.server import Schedule

CONFIGS = sorted(pathlib.Path(stackoverflow.__file__).parent.glob("configs/*.cfg"))


def make(**changes):
    return StackOverflowConfig(**({"noise_multiplier": 0.5} | changes))


def test_the_defaults_fit_the_population():
    config = make(rounds=300)
    fitted = config.for_population(4381)
    assert (fitted.min_separation, fitted.step_origin) == (43, "iterate")
    assert make(averager="uta").step_origin == "aggregate"
    assert fitted.for_population(4381) == fitted
    once = config.for_population(30_000)
    assert once.min_separation is None and once.schema_name == "at_most_once"
    # What was asked for stays, fitting or not.
    for asked in ({"participation": "at_most_once"}, {"min_separation": 50}):
        asked_for = make(rounds=300, averager="last", **asked).for_population(4381)
        assert asked_for == make(rounds=300, averager="last", **asked)


def test_the_servers_rate_follows_from_model_clip_norm_and_momentum():
    rate = make().server_rate(64_388)
    assert rate == pytest.approx(22.7, abs=0.05)
    assert make().server_rate(8 * 64_388) == pytest.approx(2 * rate)
    assert make(clip_norm=0.6).server_rate(64_388) == pytest.approx(rate / 2)
    slow = make(averager="last", server_momentum=0.9)
    assert slow.server_rate(64_388) == pytest.approx(rate / 10)
    assert make(server_learning_rate=3.0).server_rate(64_388) == 3.0


def test_the_servers_rate_is_cut_where_noise_would_fill_the_weights():
    config = make(noise_multiplier=None, epsilon=8.0).for_population(2000)
    parameters = 1370
    rate = config.server_rate(parameters)
    assert rate < make().server_rate(parameters)
    plan = config.build_plan()
    noise = Signal.of(plan, parameters).ratio * plan.rounds * config.clip_norm * rate
    assert noise / math.sqrt(parameters) == pytest.approx(0.4, rel=0.01)
    # Fewer rounds, less noise: the size of the model decides.
    few = dataclasses.replace(config, rounds=100, min_separation=20)
    assert few.server_rate(parameters) == make().server_rate(parameters)
    assert make(noise_multiplier=0.0).server_rate(parameters) > rate


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_holds_where_no_flag_says_otherwise(name):
    settings = presets.PRESETS[name].settings
    found = read(NOISE, f"--preset={name}")
    assert found == StackOverflowConfig(noise_multiplier=0.5, **settings)
    other = read("--clip_norm=0.7", NOISE, f"--preset={name}")
    assert other == dataclasses.replace(found, clip_norm=0.7)


def test_no_preset_is_the_best():
    assert read(NOISE) == read(NOISE, "--preset=best") == make()


def test_it_survives_json():
    config = make(averager="uta", k=5)
    assert StackOverflowConfig(**json.loads(json.dumps(config.to_json()))) == config


# What schedule-free training asks for.
FREE = {"step_from": "iterate", "server_momentum": 0.0}
PAPER = presets.PRESETS["paper_baseline"].settings


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "schedule_free(beta=0.9, gamma=8)"),
        (PAPER, "last"),
        ({"averager": "uta", "k": 5}, "uta(k=5)"),
        (
            {"averager": "ema", "ema_weight": 0.5, "ema_warm_up": False},
            "ema(weight=0.5)",
        ),
        ({"averager": "ema", "ema_decay": 0.9}, "ema(decay=0.9, warm_up)"),
        ({"averager": "pda", "gamma": 2.0}, "pda(gamma=2)"),
        (
            {"averager": "schedule_free", "beta": 0.8, "gamma": 2.0} | FREE,
            "schedule_free(beta=0.8, gamma=2)",
        ),
        (
            {"averager": "schedule_free"} | FREE,
            averaging.schedule_free().name,  # the flags' defaults are the library's
        ),
        ({"averager": "uta", "start_round": 7}, "uta(k=3) from step 7"),
    ],
)
def test_it_builds_the_averager(changes, name):
    assert make(**changes).build_averager().name == name


@pytest.mark.parametrize("mechanism", recipe.MECHANISMS)
def test_it_builds_a_plan_with_every_mechanism(mechanism):
    config = make(mechanism=mechanism, rounds=24, bands=4, buffers=2)
    plan = config.build_plan()
    assert plan.rho == pytest.approx(2.0)
    assert plan.noise_stddev > 0


def test_epsilon_becomes_noise():
    config = make(noise_multiplier=None, epsilon=8.0, rounds=24)
    plan = config.build_plan()
    assert plan.epsilon == pytest.approx(8.0, rel=1e-4)


def test_restarts_cost_noise():
    once = make(rounds=64).build_plan()
    often = make(rounds=64, restart_every=16).build_plan()
    assert often.mechanism.name != once.mechanism.name
    assert often.rho == once.rho


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": None}, "exactly one of noise_multiplier, .*got none"),
        ({"epsilon": 1.0}, "exactly one of .*noise_multiplier=0.5, epsilon=1.0"),
        ({"averager": "mean"}, "averager must be one of last, uta, ema, pda"),
        ({"averager": "ema"}, "exactly one of ema_weight"),
        (
            {"server_momentum": 0.95},
            "step_from=iterate and server_momentum=0; got step_from=iterate and "
            "server_momentum=0.95. Other averagers: last, uta",
        ),
        (
            {"step_from": "aggregate"},
            "got step_from=aggregate",
        ),
        ({"beta": 1.5}, "beta must be at most 1; got 1.5"),
        ({"rounds": 0}, "rounds must be at least 1; got 0"),
        ({"clip_norm": float("nan")}, "clip_norm must be at least 0; got nan"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must be at least 0"),
        ({"max_participations": 3}, "max_participations=3 needs participation="),
        ({"delta": 1.0}, "delta must be strictly between 0 and 1, got 1.0"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1, got 0.0"),
        ({"server_momentum": 1.5}, r"server_momentum must be in \[0, 1\), got 1.5"),
        ({"keep_last": -1}, "keep_last must be at least 0"),
    ],
)
def test_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_users_of_small_models_are_grouped():
    assert make().group_size(configs.GROUP_PARAMETERS) == configs.GROUP_USERS
    assert make().group_size(configs.GROUP_PARAMETERS + 1) == 1
    assert make(group_users=7).group_size(10**9) == 7
    with pytest.raises(ValueError, match="group_users must be at least 1; got 0"):
        make(group_users=0)


def test_a_change_is_reported_field_by_field():
    one = make(averager="last").to_json()
    other = make(averager="last", k=9, server_momentum=0.5).to_json()
    assert identity.differences(one, one) == []
    assert identity.differences(one, other) == [
        "k: was 3, is now 9",
        "server_momentum: was 0.0, is now 0.5",
    ]


def test_runs_that_differ_outside_the_process_share_one():
    one, other = make(seed=1, store="a", pds=True), make(seed=2, store="b")
    assert one.process_key() == other.process_key()
    assert make(k=4).process_key() != make(k=5).process_key()
    assert make(lstm_size=4).process_key() != make(lstm_size=5).process_key()


def test_a_configuration_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="not known here: warp_factor"):
        StackOverflowConfig.from_json(make().to_json() | {"warp_factor": 9})


def test_every_row_of_the_tables_has_a_flag_file():
    names = {path.stem for path in CONFIGS}
    assert names == {
        f"{scale}{task}_{method}_{privacy}"
        for scale in ("", "small_")
        for task in ("so", "pds")
        for method in ("baseline", "uta", "ema")
        for privacy in ("inf", "eps18.9", "eps8.2")
    }


def test_flag_files_give_valid_configurations():
    """Through the binary's own flags."""
    found = {}
    for path in CONFIGS:
        config = read(f"--flagfile={path}")
        found[path.stem] = config.to_json()
    assert found["so_uta_eps8.2"]["noise_multiplier"] == 0.682
    assert found["so_uta_eps8.2"]["clip_norm"] == 0.3
    assert found["pds_uta_eps18.9"]["k"] == 5 and found["pds_uta_eps18.9"]["pds"]
    # As the paper's equation is printed.
    assert found["so_ema_inf"]["ema_weight"] == 0.95
    assert found["so_ema_inf"]["ema_warm_up"]


def test_every_field_says_what_it_is():
    for field in dataclasses.fields(StackOverflowConfig):
        assert field.metadata["help"]


def read(*given):
    """Returns the configuration that `train` reads."""
    return command_lines.options(StackOverflow, "train", "--out=x", *given)[1]


NOISE = "--noise_multiplier=0.5"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--ema_decay=0.9"],
            "--ema_decay=0.9 needs averager=ema; it is schedule_free",
        ),
        (["--averager=uta", "--gamma=2"], "--gamma=2.0 needs averager=pda or schedule"),
        (["--k=3"], "--k=3 needs averager=uta; it is schedule_free"),
        (["--pds_period=50"], "--pds_period=50 needs pds=True; it is False"),
        (["--bands=4"], "--bands=4 needs mechanism=banded or square_root; it is blt"),
        (
            ["--mechanism=banded", "--bands=50", "--rounds=20"],
            "--bands=50: there are only 20 rounds to correlate",
        ),
        (["--runtime=worker", "--lanes=2"], "--lanes=2 needs runtime=local"),
        (["--ray_address=auto"], "--ray_address=auto needs runtime=ray; it is local"),
        (["--keep_last=0", "--keep_every=5"], "--keep_every=5 needs keep_last"),
        (["--server_optimizer=adam"], "=adam needs server_learning_rate: how far its"),
        (["--server_beta_2=0.9"], "--server_beta_2=0.9 needs server_optimizer=adam"),
        (
            ["--server_optimizer=adam", "--server_learning_rate=1", "--nesterov"],
            "--nesterov.* needs server_optimizer=momentum; it is adam",
        ),
        (
            [
                "--server_optimizer=adagrad",
                "--averager=last",
                "--server_momentum=0.95",
                "--server_learning_rate=1",
            ],
            "adagrad has no momentum: it goes with server_momentum=0, got 0.95",
        ),
        (
            ["--k=3", "--pds_split=fixed"],
            "no effect: --k=3 needs .*; --pds_split=fixed needs pds=True",
        ),
    ],
)
def test_flags_that_would_change_nothing_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read(NOISE, *given)


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--averager=ema", "--ema_decay=0.9", "--noema_warm_up"],
        ["--pds", "--pds_period=50"],
        ["--mechanism=banded", "--rounds=4"],  # the default is not asked for
        ["--mechanism=banded", "--bands=20", "--rounds=20"],
        [
            "--server_optimizer=yogi",
            "--server_beta_2=0.9",
            "--server_epsilon=0.1",
            "--server_learning_rate=0.1",
        ],
        ["--server_rate_schedule=cosine", "--server_warm_up=20"],
    ],
)
def test_flags_that_matter_are_taken(given):
    read(NOISE, *given)


def test_preparing_is_refused_where_there_is_a_store():
    message = (
        "--source=synthetic has no place beside store=data; --vocab_size=100 has no "
        "place beside store=data"
    )
    with pytest.raises(ValueError, match=message):
        read(NOISE, "--store=data", "--vocab_size=100", "--source=synthetic")


def test_the_full_scale_is_judged_as_in_the_paper():
    """Validation on 10,000 users, and all test data."""
    full = [path for path in CONFIGS if not path.name.startswith("small")]
    assert len(full) == 18
    for path in full:
        config = read(f"--flagfile={path}")
        assert config.validation_users == 10_000
        # More sentences than there are.
        assert min(config.validation_examples, config.test_examples) > 20_000_000


def test_validation_on_users_takes_all_of_their_sentences(tmp_path):
    store = tiny_stores.make_store(tmp_path, users=200, words=40)

    def rows(split, **changes):
        task = StackOverflow(make(store=store, **changes))
        found = task.sample(split, 10**8, 1)
        return task.data, {kind: {*map(bytes, part)} for kind, part in found.items()}

    data, few = rows("heldout", validation_users=3)
    users = data.users("heldout")
    # Which three is a matter of the seed: they are whole.
    of_user = {
        user: {*map(bytes, data.rows(user, max_sentences=None))} for user in users
    }
    found = set.union(*few.values())
    inside = [user for user in users if of_user[user] <= found]
    assert len(inside) >= 3 and len(users) > 3
    assert found == set.union(*(of_user[user] for user in inside))
    _, again = rows("heldout", validation_users=3)
    _, everyone = rows("heldout")
    assert again == few
    assert found < set.union(*everyone.values())
    # The test data stay whole.
    assert rows("test", validation_users=3)[1] == rows("test")[1]
    _, all_of_them = rows("heldout", validation_users=10**6)
    assert all_of_them == everyone


def test_the_servers_step_follows_from_flags():
    flags = ["--server_optimizer=adam", "--server_momentum=0.8", "--averager=uta"]
    rates = ["--server_rate_schedule=linear", "--server_learning_rate=0.1"]
    step = read(NOISE, "--rounds=10", *flags, *rates).build_server_step(1000)
    assert step.optimiser.parameters == {
        "name": "adam", "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3
    }  # fmt: skip
    assert step.learning_rate == Schedule(0.1, 10, "linear")
    assert step.averager.name == "uta(k=3)"
    paper = read(NOISE, "--preset=paper_baseline")
    assert paper.build_server_step(1000).to_json() == {
        "learning_rate": 0.5, "momentum": 0.95, "nesterov": False,
        "step_from": "aggregate",
    }  # fmt: skip
