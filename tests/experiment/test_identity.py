"""One noise, one release: what the loop refuses, whoever calls it."""

import base64
import shutil
import stat

import numpy as np
import pytest

from tests.experiment import tiny_runs
from tests.experiment.tiny_runs import train, train_until
from tff_agg import averaging, noise, runtime
from tff_agg.experiment.run import identity, ledger, loop, releasing
from tff_agg.server import state as states

NOT_CHECKED = identity.NotChecked("for this test")


@pytest.fixture(autouse=True, scope="module")
def _local_runtime():
    with runtime.running_on("local", lanes=1):
        yield


@pytest.fixture(scope="module")
def made():
    return tiny_runs.build()


def damage_newest_state(folder):
    """Flips a byte of the newest state, without touching what it says of itself."""
    newest = tiny_runs.store_of(folder).rounds("state")[-1]
    path = folder / "checkpoints" / "manifests" / f"{newest:09d}.json"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return newest


# --- the attacks -------------------------------------------------------------------


def test_another_users_data_cannot_be_put_under_the_same_noise(made, tmp_path):
    """Killed after round 7, gone on with one user of round 6 zeroed."""
    victim = tiny_runs.users(5)[0]
    train_until(made, tmp_path, 7)
    before = tiny_runs.released(tmp_path)
    with pytest.raises(loop.IdentityError, match=r"\bdata: was .*, is now "):
        train(made, tmp_path, zeroed=[victim])
    assert tiny_runs.released(tmp_path) == before


def test_released_rounds_stay_though_nobody_checks_the_data(made, tmp_path):
    """Even a caller that checks nothing cannot have a round released twice."""
    victim = tiny_runs.users(5)[0]
    who = tiny_runs.identity_of(data=NOT_CHECKED, sampler=NOT_CHECKED)
    train_until(made, tmp_path, 7, identity=who)
    before = tiny_runs.released(tmp_path)
    train(
        made,
        tmp_path,
        identity=who,
        cohort=tiny_runs.cohort_reader([victim], digest=NOT_CHECKED),
    )
    after = tiny_runs.released(tmp_path)
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize(
    ("digest", "what"), [(None, "other data"), (NOT_CHECKED, "other released")]
)
def test_a_round_computed_again_must_be_the_same_bits(made, tmp_path, digest, what):
    """The newest state is damaged, so its round has to be computed again."""
    who = tiny_runs.identity_of(data=NOT_CHECKED)
    train_until(
        made, tmp_path, 7, identity=who, cohort=tiny_runs.cohort_reader(digest=digest)
    )
    assert damage_newest_state(tmp_path) == 7
    stored = tmp_path / "checkpoints" / "manifests"
    before = {p.name: p.read_bytes() for p in stored.iterdir()}
    other = tiny_runs.cohort_reader(tiny_runs.users(6)[:1], digest=digest)
    with pytest.raises(loop.ReleasedRoundError, match=f"Round 7 .* {what}"):
        train(made, tmp_path, identity=who, cohort=other)
    assert {p.name: p.read_bytes() for p in stored.iterdir()} == before
    # With the same clients it comes out the same, and the run goes on.
    same = tiny_runs.cohort_reader(digest=digest)
    train(made, tmp_path, identity=who, cohort=same)
    assert tiny_runs.store_of(tmp_path).rounds("iterate") == list(range(17))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"noise_multiplier": 2.0}, r"process\.plan\.noise_multiplier: was 1.0"),
        ({"mechanism": noise.identity()}, r"process\.plan\.mechanism: was"),
        ({"averager": averaging.uta(2)}, r"process\.averager\.name: was"),
        ({"rounds": 64}, r"process\.plan\.rounds: was 16, is now 64"),
    ],
)
def test_another_plan_is_refused_by_name(made, tmp_path, changes, field):
    train_until(made, tmp_path, 3)
    with pytest.raises(loop.IdentityError, match=field) as caught:
        train(tiny_runs.build(**changes), tmp_path)
    assert "another folder" in str(caught.value)


def test_another_matrix_is_refused_wherever_it_differs(tmp_path):
    """One that differs in a single entry, in the last row or before it."""
    matrix = np.tril(np.full((16, 16), 0.25)) + np.eye(16)
    train_until(tiny_runs.build(mechanism=noise.dense_from(matrix)), tmp_path, 3)
    for row in (9, 15):
        other = matrix.copy()
        other[row, 4] += 0.01
        with pytest.raises(loop.IdentityError, match="mechanism_fingerprint"):
            train(tiny_runs.build(mechanism=noise.dense_from(other)), tmp_path)


def test_a_finished_run_is_not_the_beginning_of_a_longer_one(made, tmp_path):
    train(made, tmp_path)
    with pytest.raises(loop.IdentityError, match="was 16, is now 64"):
        train(tiny_runs.build(rounds=64), tmp_path, rounds=64)
    assert tiny_runs.store_of(tmp_path).rounds("iterate") == list(range(17))


def test_a_sampler_that_draws_others_is_refused(made, tmp_path):
    train_until(made, tmp_path, 3)
    with pytest.raises(loop.IdentityError, match="sampler: was"):
        train(made, tmp_path, shift=1)


@pytest.mark.parametrize("removed", ["checkpoints", "manifests", "states"])
def test_rounds_without_a_state_are_not_begun_anew(made, tmp_path, removed):
    train_until(made, tmp_path, 3)
    if removed == "states":
        for name in ("000000002.json", "000000003.json"):
            (tmp_path / "checkpoints" / "manifests" / name).unlink()
    else:
        folder = tmp_path / "checkpoints"
        shutil.rmtree(folder / "manifests" if removed == "manifests" else folder)
    with pytest.raises(loop.ResumeError, match="has released 3 rounds"):
        train(made, tmp_path)


def test_checkpoints_without_a_ledger_are_nobodys(made, tmp_path):
    train_until(made, tmp_path, 3)
    (tmp_path / ledger.NAME).unlink()
    with pytest.raises(loop.ResumeError, match=r"ledger\.jsonl is missing"):
        train(made, tmp_path)


# --- what may change ---------------------------------------------------------------


def test_a_run_moves_to_another_machine_between_rounds(made, tmp_path):
    train_until(made, tmp_path, 3)
    before = tiny_runs.released(tmp_path)
    train(made, tmp_path, surroundings={"processor": "another"})
    after = tiny_runs.released(tmp_path)
    assert {key: after[key] for key in before} == before
    history = ledger.Ledger(tmp_path).read()
    assert list(history.segments) == [0, 4]
    assert history.surroundings_of(4) == {"processor": "another"}
    assert history.surroundings_of(3)["lanes"] == ["/device:CPU:0"]


def test_a_round_to_be_computed_again_keeps_the_run_where_it_is(made, tmp_path):
    train_until(made, tmp_path, 3)
    damage_newest_state(tmp_path)
    with pytest.raises(loop.IdentityError, match="processor: was") as caught:
        train(made, tmp_path, surroundings={"processor": "another"})
    assert "round 3 has to be computed again" in str(caught.value)
    train(made, tmp_path)


# --- what is stored when -----------------------------------------------------------


def test_the_identity_is_stored_before_noise_is_drawn(made, tmp_path):
    def cohort(t):
        history = ledger.Ledger(tmp_path).read()
        assert history.identity["process"]["plan"]["noise_multiplier"] == 1.0
        assert history.identity["sampler"] == tiny_runs.identity_of().sampler
        assert tiny_runs.store_of(tmp_path).rounds("state") == [0]
        raise tiny_runs.Killed

    with pytest.raises(tiny_runs.Killed):
        train(made, tmp_path, cohort=cohort)


def test_a_start_that_died_before_its_first_state_starts(made, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(releasing.Releases, "begin", fail)
        with pytest.raises(RuntimeError):
            train(made, tmp_path)
    assert (tmp_path / ledger.NAME).exists()
    train(made, tmp_path, rounds=1)


def test_a_round_is_told_after_it_is_saved_and_told_again_if_need_be(made, tmp_path):
    heard, started = [], []

    def on_round(report):
        store = tiny_runs.store_of(tmp_path)
        assert store.rounds("state")[-1] == report.round
        saved = store.load(report.round, "iterate")
        for name, value in report.iterate.items():
            np.testing.assert_array_equal(saved[name], value)
        heard.append((report.round, report.metrics))
        if len(heard) == 3:
            raise tiny_runs.Killed
        return {"heard": report.round}

    with pytest.raises(tiny_runs.Killed):
        train(made, tmp_path, on_round=on_round)
    reported = ledger.Ledger(tmp_path).read().reported
    assert reported == {1: {"heard": 1}, 2: {"heard": 2}}
    train(made, tmp_path, on_start=started.append, on_round=on_round)
    assert [number for number, _ in heard] == [1, 2, 3, *range(3, 17)]
    assert heard[2] == heard[3]
    assert started == [3]
    records = ledger.Ledger(tmp_path).read().rounds
    assert [records[n]["metrics"] for n in (1, 2)] == [m for _, m in heard[:2]]


def test_each_round_says_who_took_part_with_what(made, tmp_path):
    train(made, tmp_path)
    history = ledger.Ledger(tmp_path).read()
    for t in range(16):
        record = history.rounds[t + 1]
        assert record["cohort"] == identity.ids_digest(tiny_runs.users(t))
        assert record["data"] == tiny_runs.cohort_reader()(t).digest


# --- the secret --------------------------------------------------------------------


def files_with(folder, secret):
    """Returns the files that hold an array, as it is or as a manifest writes it."""
    raw = np.asarray(secret).tobytes()
    written = base64.b64encode(raw)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [p for p in paths if {raw in (c := p.read_bytes()), written in c} != {False}]


def secrets_of(state):
    """Returns the seed and the buffers of a state."""
    kept = states.noise(state)
    return [kept["seed"], *(leaf for part in kept.get("buffers", ()) for leaf in part)]


@pytest.mark.parametrize("mechanism", [noise.tree(), noise.blt_from((0.5,), (0.25,))])
def test_the_noise_is_dropped_from_a_finished_run(tmp_path, mechanism):
    made = tiny_runs.build(rounds=6, mechanism=mechanism)
    unfinished = train(made, tmp_path, rounds=5)
    seed = secrets_of(unfinished)[0]
    assert np.any(seed)
    holding = files_with(tmp_path, seed)
    assert {path.name for path in holding} == {"000000004.json", "000000005.json"}
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    last = train(made, tmp_path, rounds=6)
    assert not files_with(tmp_path, seed)
    store = tiny_runs.store_of(tmp_path)
    assert store.rounds("state") == [6]
    for secret in secrets_of(last):
        assert not np.any(secret)
    for secret in secrets_of(unfinished):
        assert not (np.any(secret) and files_with(tmp_path, secret))
    # It has nothing left to do, and says so by the same state.
    again = train(made, tmp_path, rounds=6)
    assert int(states.round_of(again)) == 6


def test_a_kill_before_the_seed_is_dropped_is_made_good(tmp_path, monkeypatch):
    made = tiny_runs.build(rounds=2)
    seed = secrets_of(train(made, tmp_path, rounds=1))[0]

    def die(*_, **__):
        raise tiny_runs.Killed

    with monkeypatch.context() as patch, pytest.raises(tiny_runs.Killed):
        patch.setattr(releasing.Releases, "_drop_old_states", die)
        train(made, tmp_path, rounds=2)
    assert files_with(tmp_path, seed)
    train(made, tmp_path, rounds=2)
    assert not files_with(tmp_path, seed)


# --- the parts ---------------------------------------------------------------------


@pytest.mark.parametrize("part", ["sampler", "data", "model"])
def test_no_part_is_left_out_by_accident(part):
    with pytest.raises(TypeError, match=part):
        tiny_runs.identity_of(**{part: None})
    tiny_runs.identity_of(**{part: NOT_CHECKED})
    with pytest.raises(ValueError, match="reason"):
        identity.NotChecked("")


def test_a_process_that_does_not_describe_itself_needs_a_description():
    who = tiny_runs.identity_of()
    with pytest.raises(TypeError, match=r"identity\.process"):
        who.facts(object())
    told = tiny_runs.identity_of(process={"plan": {"rounds": 3}})
    assert told.facts(object())["process"]["plan"] == {"rounds": 3}


def test_more_rounds_than_planned_are_refused(made, tmp_path):
    with pytest.raises(ValueError, match="rounds=17: the plan is for 16"):
        train(made, tmp_path, rounds=17)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("saved", "wanted", "lines"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": [1.0, 2]}}, {"a": {"b": [1.0, 3]}}, ["a.b[1]: was 2, is now 3"]),
        ({"a": 1}, {}, ['a: was 1, is now "(absent)"']),
        ({"a": 0.3}, {"a": 0.3 * (1 + 1e-12)}, []),
        ({"a": 0.3}, {"a": 0.300001}, ["a: was 0.3, is now 0.300001"]),
        ({"a": 1}, {"a": True}, ["a: was 1, is now true"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a: was [1], is now [1, 2]"]),
    ],
)
def test_differences_are_told_field_by_field(saved, wanted, lines):
    assert identity.differences(saved, wanted) == lines


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_half_a_line_of_the_ledger_was_never_written(made, tmp_path, cut):
    train_until(made, tmp_path, 3)
    whole = ledger.Ledger(tmp_path).read()
    path = tmp_path / ledger.NAME
    path.write_bytes(path.read_bytes()[:-cut])
    assert ledger.Ledger(tmp_path).read().last == 2
    train(made, tmp_path, rounds=4)
    after = ledger.Ledger(tmp_path).read()
    assert after.last == 4
    assert after.rounds[3] == whole.rounds[3], "from the manifest of round 3"


def test_a_damaged_ledger_is_named(made, tmp_path):
    train_until(made, tmp_path, 3)
    path = tmp_path / ledger.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"round", b"Round")
    path.write_bytes(b"".join(lines))
    with pytest.raises(loop.ResumeError, match=r"ledger\.jsonl is damaged in line 4"):
        train(made, tmp_path)
