"""Membership by the loss: statistics, what is allowed, runs that leak or do not."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from sklearn import metrics

from cifar.task import Cifar
from stackoverflow.task import StackOverflow
from tests import tiny_stores
from tests.experiment import train_binary
from tff_agg.audit import membership
from tff_agg.experiment import commands, membership_audit
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.commands import audit as command
from tff_agg.experiment.commands import report
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.keras_task import KerasTask
from tff_agg.experiment.membership_audit import MembershipConfig
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.runs import Run
from tff_agg.privacy import gaussian
from tff_agg.privacy.losses import Loss

WIDTH, CLASSES, USERS = 256, 4, 200


def test_the_curve_and_its_area_are_those_of_scikit_learn():
    random = np.random.default_rng(3)
    members = random.normal(0.4, 1, 300).round(1)
    others = random.normal(size=200).round(1)
    found = membership.attack("toy", members, others)
    right = np.r_[np.ones(300), np.zeros(200)]
    scores = np.r_[members, others]
    assert found.auc.value == pytest.approx(metrics.roc_auc_score(right, scores))
    wanted = metrics.roc_curve(right, scores, drop_intermediate=False)[:2]
    np.testing.assert_allclose(found.curve, wanted)
    false, true = found.curve
    assert found.true_positives[0.01] == pytest.approx(true[false <= 0.01].max())
    assert found.true_positives[0.001] is None, "of 200 nobody is a tenth of a percent"


def test_the_interval_covers_the_area_as_often_as_it_says():
    random, inside = np.random.default_rng(0), 0
    for _ in range(400):
        members, others = random.normal(0.5, 1, 80), random.normal(size=120)
        low, high = membership.attack("", members, others).auc[1:]
        inside += low < allowed_by(0.5).auc < high
    assert 0.92 < inside / 400 < 0.98


def allowed_by(mu, **loss):
    whole = Loss(mu=mu, **loss)
    return membership.Allowed(whole, whole.epsilon(1e-5), 1e-5)


def test_what_is_allowed_is_the_curve_of_two_normal_distributions():
    random = np.random.default_rng(1)
    mu, rates = 1.5, np.array([0.001, 0.01, 0.1, 0.5, 0.9])
    members, others = random.normal(mu, 1, 100_000), random.normal(0, 1, 100_000)
    thresholds = np.quantile(others, 1 - rates)
    seen = [(members > threshold).mean() for threshold in thresholds]
    np.testing.assert_allclose(allowed_by(mu).true_positives(rates), seen, atol=0.01)
    area = membership.attack("", members, others).auc
    assert area.low < allowed_by(mu).auc < area.high
    # It is the lower envelope of the lines that all (ε, δ) draw.
    lines = [np.exp(e) * rates + gaussian.delta(mu, e) for e in np.linspace(0, 9, 9001)]
    low = rates < 0.3
    np.testing.assert_allclose(
        np.min(lines, axis=0)[low], gaussian.power(mu, rates)[low], rtol=1e-3
    )


def test_what_epsilon_alone_allows_is_more_and_holds_for_any_release():
    rates = np.geomspace(1e-4, 1, 50)
    one = allowed_by(1.0)
    assert (one.by_epsilon(rates) >= one.true_positives(rates) - 1e-12).all()
    mixed = allowed_by(1.0, other_rho=0.1)
    assert not mixed.is_gaussian
    np.testing.assert_array_equal(mixed.true_positives(rates), mixed.by_epsilon(rates))
    false = np.linspace(0, 1, 100_001)
    gap = np.max(mixed.by_epsilon(false) - false)
    assert mixed.advantage == pytest.approx(gap, abs=1e-4)
    assert one.auc < mixed.auc < 1


class Coins(KerasTask):
    """Labels are coins: what a model knows of them it has from the users' own data."""

    package = "tests.audit"
    Config = TrainConfig
    fingerprint = "coins"

    def users(self):
        return np.arange(USERS)

    def examples_of(self, user, group):
        random = np.random.default_rng([7, user])
        return random.standard_normal((3, WIDTH), np.float32), random.integers(
            CLASSES, size=3
        )

    def evaluation_examples(self, split):
        return {"all": self.examples_of(USERS, "all")}

    def keras_model(self, seed):
        import tensorflow as tf

        layers = tf.keras.layers
        return tf.keras.Sequential(
            [layers.InputLayer([WIDTH]), layers.Dense(CLASSES, use_bias=False,
             kernel_initializer="zeros")]
        )  # fmt: skip


SETTINGS = {
    "rounds": 10, "clients_per_round": 8, "client_learning_rate": 0.05,
    "local_epochs": 5, "server_learning_rate": 4.0, "server_momentum": 0.0,
    "clip_norm": 2.0, "mechanism": "identity", "group_users": 1, "lanes": 1,
    "participation": "at_most_once", "insecure_noise_seed": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """By the noise, a run's folder and what the attack on its last models found."""
    found = {}
    with Compiled() as cache:
        for noise in (0.0, 4.0):
            folder = tmp_path_factory.mktemp("runs") / str(noise)
            config = TrainConfig(**SETTINGS, noise_multiplier=noise)
            training.run(Coins(config), folder, compiled=cache)
            run = Run.open(Coins, folder)
            found[noise] = (
                folder,
                membership_audit.run(run, MembershipConfig(True, checkpoints=3)),
            )
    return found


def test_a_run_that_overfits_without_noise_gives_its_users_away(attacked):
    folder, outcome = attacked[0.0]
    assert [one.name for one in outcome.found] == [
        "round 8", "round 9", "round 10", "mean of 3",
    ]  # fmt: skip
    for one in outcome.found:
        assert one.auc.low > 0.8
    assert outcome.allowed is None and not outcome.refutes_claim
    members, others, whose = outcome.compared
    assert members == others == 8 * 8
    assert whose == "users of the training data who took part in no round"
    page = (folder / "privacy_report.md").read_text()
    assert "nothing limits what an attacker may find" in page
    assert (folder / "audit" / "membership.json").stat().st_mode & 0o777 == 0o600
    assert (folder / "audit" / "membership.csv").stat().st_mode & 0o777 == 0o600


def test_a_run_with_much_noise_leaves_nothing_to_find(attacked):
    folder, outcome = attacked[4.0]
    best = membership.best(outcome.found)
    assert best.auc.low < 0.5 < best.auc.high
    assert outcome.allowed.auc == pytest.approx(0.5702, abs=1e-4), "μ is a quarter"
    assert not outcome.refutes_claim
    saved = json.loads((folder / "audit" / "membership.json").read_text())
    assert saved["attacks"][-1]["interval"] == list(outcome.found[-1].auc[1:])
    assert saved["allowed"]["auc"] == outcome.allowed.auc
    with open(folder / "audit" / "membership.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["auc"]) for row in rows] == [o.auc.value for o in outcome.found]
    assert rows[0]["true_positives_at_0.01"] == "", "64 users show no such rate"
    report_of_run = json.loads((folder / "privacy_report.json").read_text())
    assert report_of_run["membership"] == saved
    page = (folder / "privacy_report.md").read_text()
    assert "## Membership inference" in page and "one weak attacker" in page
    assert "the same run with a secret seed" in page
    assert (folder / "audit" / "membership.png").read_bytes().startswith(b"\x89PNG")
    path = report.write(
        Coins, report.ReportConfig(run=str(folder), methods=(), examples=3)
    )
    text = path.read_text()
    assert "<h2>Membership inference</h2>" in text and "one weak attacker" in text


def test_a_leak_above_the_claim_ends_with_status_1(attacked, monkeypatch, capsys):
    folder, _ = attacked[0.0]
    honest = membership_audit._allowed
    monkeypatch.setattr(
        membership_audit,
        "_allowed",
        lambda plan: honest(dataclasses.replace(plan, noise_multiplier=4.0)),
    )
    run = Run.open(Coins, folder)
    assert command.attack_run(run, MembershipConfig(True), 0.95) == 1
    shown = capsys.readouterr().out
    assert "allowed by ε" in shown and "of which this shows" in shown
    assert "ABOVE what is allowed" in (folder / "privacy_report.md").read_text()


def test_members_and_others_are_alike_but_for_having_taken_part(tmp_path):
    store = tiny_stores.make_store(tmp_path, users=200, words=60)
    task = StackOverflow(train_binary.tiny_config(store, pds=True, pds_period=4))
    with Compiled() as cache:
        sampler = build(task, cache).unchecked_sampler
    who = membership_audit.compared(task, sampler, [4, 6], most=1000)
    seen = {int(u) for t in range(6) for u in sampler.users(t)}
    early = {int(u) for t in range(4) for u in sampler.users(t)}
    assert {user for user, _, _ in who.members} <= early
    assert not {user for user, _, _ in who.others} & seen
    for user, group, round_number in who.members:
        assert round_number < 4 and (user, group) in sampler.sample(round_number)
    assert [key[1:] for key in who.members] == [key[1:] for key in who.others]
    assert len(membership_audit.compared(task, sampler, [4, 6], most=10).members) <= 10
    # Held-out users are none of training.
    names = {task.data.user_name(user) for user in task.users()}
    for group in task.heldout_users():
        assert group.name in ("question", "answer") and len(group.users)
        assert not names & {task.data.user_name(int(user)) for user in group.users}


def test_what_cannot_be_attacked_is_refused(attacked, tmp_path):
    folder, _ = attacked[4.0]
    run = Run.open(Coins, folder)
    sample = dataclasses.replace(run, task=Cifar.__new__(Cifar))
    with pytest.raises(ValueError, match="DP-SGD, which hides single examples"):
        membership_audit.run(sample, MembershipConfig(True))
    with pytest.raises(ValueError, match="most_users must be at least 10; got 3"):
        MembershipConfig(True, most_users=3)
    with pytest.raises(FileNotFoundError, match=r"no privacy_report\.json"):
        membership_audit.run(
            dataclasses.replace(run, opened=RunFolder(tmp_path)), MembershipConfig(True)
        )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--membership", "--canaries=20"], "canaries=20 needs membership=False"),
        (["--most_users=20"], "most_users=20 needs membership=True"),
    ],
)
def test_flags_of_the_other_audit_are_refused(flags, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit):
        commands.main(Coins, arguments=["audit", f"--run={tmp_path}", *flags])
    assert complaint in capsys.readouterr().err
