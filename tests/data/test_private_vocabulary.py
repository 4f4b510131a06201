"""A vocabulary with a cap for each user and noise: votes, threshold, what is spent."""

import collections
import dataclasses
import logging
import os

import numpy as np
import pytest

from stackoverflow import prepare
from stackoverflow.data import encode, vocabulary, votes, word_choice
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore
from stackoverflow.task import StackOverflowConfig
from tests import command_lines
from tff_agg import noise
from tff_agg.privacy import KeySelection, Release

CAP = 3
# So little noise that the votes decide: for tests of everything but the noise.
QUIET = KeySelection(cap=CAP, noise_multiplier=1e-6, delta=1e-7)


def make_rows(seed=0, users=12):
    """Users who write few different words, often equally often, in mixed order."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        for _ in range(rng.integers(1, 6)):
            words = rng.choice(list("abcdefgh"), rng.integers(1, 7))
            kind = ("question", "answer")[rng.integers(2)]
            split = "train" if user < users - 2 else ("heldout", "test")[user % 2]
            rows.append((f"u{user}", kind, "", " ".join(words), split))
    order = rng.permutation(len(rows))
    return [rows[i] for i in order]


def killed(*_, **__):
    raise Killed


def count(rows, list_source, folder, cap=CAP):
    """Returns the votes for each word, by the steps of a preparation."""
    source = list_source(tuple(rows), 9, 4)
    # Several buckets and pieces also for little data, users spread over them.
    work = encode.Work(os.fspath(folder), buckets=-(-len(rows) // 10), max_tokens=5)
    for name in ("shards", "pieces", "counts"):
        os.makedirs(work.path(name))
    for shard in range(source.num_shards()):
        encode.encode_shard(shard, source, work)
    total = collections.Counter()
    for bucket in range(work.buckets):
        votes.count_votes(bucket, cap, work)
        total.update(dict(encode.iterate_counts(votes.votes_path(bucket, work))))
    return total


def words_of(rows, user, max_tokens=5):
    written = collections.Counter()
    for name, _, _, text, split in rows:
        if name == user and split == "train":
            written.update(text.split()[:max_tokens])
    return written


def test_users_vote_for_their_most_frequent_words(list_source, tmp_path):
    """With a cap above everybody's words, a word's votes are its train users."""
    rows = make_rows()
    everything = count(rows, list_source, tmp_path / "all", cap=100)
    users = {row[0] for row in rows}
    expected = collections.Counter()
    for user in users:
        expected.update(words_of(rows, user).keys())
    assert everything == expected
    # One user alone: words above the cut are in, words below are not.
    for user in sorted(users)[:6]:
        own = [row for row in rows if row[0] == user]
        chosen = count(own, list_source, tmp_path / user)
        written = words_of(rows, user)
        assert sum(chosen.values()) == min(CAP, len(written))
        assert set(chosen.values()) <= {0, 1}
        border = sorted(written.values(), reverse=True)[: CAP + 1]
        for word, times in written.items():
            if len(border) > CAP and times != border[CAP]:
                assert chosen[word] == (times > border[CAP]), (user, word)


@pytest.mark.parametrize("seed", range(2))
def test_one_user_moves_at_most_cap_votes_by_one_each(seed, list_source, tmp_path):
    """Every neighbouring population: each user left out, in other pieces and buckets.

    The votes of all others must stay as they are, ties included.
    """
    rows = make_rows(seed)
    whole = count(rows, list_source, tmp_path / "whole")
    moved = []
    for user in sorted({row[0] for row in rows}):
        rest = [row for row in rows if row[0] != user]
        without = count(rest, list_source, tmp_path / user)
        difference = [whole[w] - without[w] for w in whole | without]
        assert set(difference) <= {0, 1}
        assert np.linalg.norm(difference) <= np.sqrt(CAP) + 1e-12
        own = words_of(rows, user)
        assert sum(difference) == min(CAP, len(own))
        moved.append(sum(difference))
    assert max(moved) == CAP and min(moved) == 0  # heldout users have no votes


def test_ties_are_not_always_won_by_the_same_words(list_source, tmp_path):
    rows = [(f"u{i}", "answer", "", "a b c d e", "train") for i in range(60)]
    found = count(rows, list_source, tmp_path / "x", cap=2)
    assert sum(found.values()) == 120
    # A fifth of 120 each is expected; a fixed order would give 60, 60, 0, 0, 0.
    assert all(8 <= found[word] <= 42 for word in "abcde")


def test_noise_decides_words_near_the_threshold_and_no_others():
    selection = KeySelection(cap=4, noise_multiplier=2.0, delta=1e-3)
    middle = round(selection.threshold)
    counts = [[("far", middle + 40), ("near", middle)], [("one", 1)]]
    seen = collections.Counter()
    for seed in range(300):
        words, passed = vocabulary.private_top_words(counts, 10, selection, (seed, 1))
        assert passed == len(words)
        seen.update(words)
    assert seen["far"] == 300 and seen["one"] == 0
    assert 90 < seen["near"] < 210
    kept = vocabulary.private_top_words(counts, 1, selection, (0, 1))
    assert kept[0] == ("far",)


def test_every_word_has_noise_of_its_own():
    """Words come in blocks, and no block may have another's noise."""
    selection = KeySelection(cap=4, noise_multiplier=2.0, delta=1e-3)
    middle = round(selection.threshold)
    counts = [[(f"{number:05}", middle) for number in range(3 * 4096)]]
    words, _ = vocabulary.private_top_words(counts, 3 * 4096, selection, KEY)
    passed = np.isin([word for word, _ in counts[0]], words).reshape(3, 4096)
    shared = [(passed[i] == passed[j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(shared) > 0.4 and max(shared) < 0.6


KEY = (11, -12, 13, 2**63 + 14)
SOURCE = SyntheticSource(users=120, words=40, seed=3)
NOISY = KeySelection(cap=20, noise_multiplier=0.5, delta=1e-7)


def test_a_store_names_what_its_vocabulary_spent(tmp_path):
    store = prepare_store(SOURCE, tmp_path / "store", selection=NOISY)
    (release,) = store.releases
    assert release == NOISY.release("vocabulary")
    assert release.rho == 2.0 and release.delta == 1e-7
    assert 0 < store.vocabulary.vocab_size <= 42
    # Opened again, also in another process: the same; prepared again: nothing is drawn.
    assert TokenStore.open(store.path).releases == (release,)
    again = prepare_store(SOURCE, tmp_path / "store", selection=NOISY)
    assert again.fingerprint == store.fingerprint
    with pytest.raises(ValueError, match="vocabulary_selection"):
        prepare_store(SOURCE, tmp_path / "store")
    plain = prepare_store(SOURCE, tmp_path / "plain")
    assert plain.releases == ()


def test_other_processes_count_the_same_votes(tmp_path):
    stores = [
        prepare_store(SOURCE, tmp_path / f"{n}", selection=QUIET, workers=n)
        for n in (1, 2)
    ]
    # Noise far below one vote changes the order of equal words at most.
    first, second = (set(store.vocabulary.words) for store in stores)
    assert first == second


def test_the_noise_is_fresh_in_every_store(tmp_path):
    loud = dataclasses.replace(NOISY, noise_multiplier=2.0, delta=0.4)
    sizes = {
        prepare_store(
            SOURCE, tmp_path / f"{i}", selection=loud, vocab_size=100
        ).vocabulary.words
        for i in range(2)
    }
    assert len(sizes) == 2


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_killed_preparation_keeps_the_words_it_drew(tmp_path, monkeypatch):
    drawn = []
    real = noise.fresh_seed

    def counting(*given):
        drawn.append(given)
        return real(*given)

    monkeypatch.setattr(noise, "fresh_seed", counting)
    real_map = encode.map_words
    monkeypatch.setattr(encode, "map_words", killed)
    with pytest.raises(Killed):
        prepare_store(SOURCE, tmp_path / "store", selection=NOISY)
    chosen = encode.read_json(tmp_path / "store.partial" / "vocabulary.json")
    monkeypatch.setattr(encode, "map_words", real_map)
    store = prepare_store(SOURCE, tmp_path / "store", selection=NOISY)
    assert list(store.vocabulary.words) == chosen["words"]
    assert drawn == [()], "drawn once, from the operating system"


def test_starting_over_adds_up(tmp_path, monkeypatch):
    """Words that were drawn have been seen: replacing them does not give ρ back."""
    out = tmp_path / "store"
    prepare_store(SOURCE, out, selection=NOISY)
    other = dataclasses.replace(NOISY, noise_multiplier=1.0, delta=2e-7)
    twice = prepare_store(SOURCE, out, selection=other, restart=True)
    (release,) = twice.releases
    assert release.rho == 2.5 and release.delta == pytest.approx(3e-7)
    assert release.method.count("at most 20 keys") == 2
    real_map = encode.map_words
    monkeypatch.setattr(encode, "map_words", killed)
    for _ in range(2):  # killed after its draw, twice
        with pytest.raises(Killed):
            prepare_store(SOURCE, out, selection=other, restart=True)
    monkeypatch.setattr(encode, "map_words", real_map)
    (release,) = prepare_store(SOURCE, out, selection=other, restart=True).releases
    assert release.rho == pytest.approx(2.5 + 3 * 0.5)
    assert os.listdir(tmp_path) == ["store"]


def test_nothing_above_the_threshold_is_an_error_that_says_what_to_do(tmp_path):
    too_much = KeySelection(cap=20, noise_multiplier=500.0, delta=1e-7)
    with pytest.raises(ValueError, match="smaller noise multiplier than 500"):
        prepare_store(SOURCE, tmp_path / "store", selection=too_much)
    assert not (tmp_path / "store").exists()


def test_fewer_words_than_asked_for_are_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        prepare_store(SOURCE, tmp_path / "store", selection=NOISY, vocab_size=100)
    assert "noisy votes" in caplog.text


def test_a_run_counts_the_vocabulary(tmp_path):
    spent = Release("vocabulary", 0.02, 1e-7, "noisy votes")
    config = StackOverflowConfig(
        store="x", rounds=8, clients_per_round=4, epsilon=8.0, mechanism="tree"
    )
    plan = config.build_plan([spent])
    assert plan.epsilon == pytest.approx(8.0, abs=1e-4)
    assert plan.rho == pytest.approx(plan.training_rho + 0.02)
    assert plan.noise_multiplier > config.build_plan().noise_multiplier


def test_a_vocabulary_that_collapses_says_which_flag_would_help():
    """What a stranger saw: 208 words of 2,000."""
    selection = KeySelection(100, 5.0, delta=1e-7)
    text = word_choice.too_few(2000, 208, selection)
    assert text.startswith("vocab_size=2000, but only 208 words have more than 300.9")
    assert "--vocab_noise_multiplier=1 asks for 60.98 votes" in text
    assert "for ρ = 0.5 instead of 0.02" in text
    # Of the mailing lists: 1,063 words at 2 where 511 had passed at 5.
    text = word_choice.too_few(1050, 511, selection)
    assert "multiplier=2 asks for 121 votes, which about 1050 words" in text
    # Never more noise, never none.
    lone = KeySelection(100, 1.0, delta=1e-7)
    assert "More users, or a larger --vocab_user_cap" in word_choice.too_few(
        2000, 3, lone
    )


def run(*arguments):
    given = ["--users=120", "--words=40", "--workers=1", *arguments]
    return command_lines.run(None, "stackoverflow.prepare", *given)


def test_the_binary_says_what_the_vocabulary_means(tmp_path, capsys):
    assert run(f"--out={tmp_path}/plain") == 0
    shown = capsys.readouterr().out
    assert "no run's guarantee covers it" in shown
    assert (
        "train users who are in other splits as well: 0 in heldout, 0 in test" in shown
    )
    options = ("--vocab_user_cap=20", "--vocab_noise_multiplier=0.5")
    assert run(f"--out={tmp_path}/private", *options) == 0
    shown = capsys.readouterr().out
    assert "vocabulary: ρ = 2, δ = 1e-07, counted by every run" in shown
    with pytest.raises(ValueError, match="belong together; got 20 and None"):
        run(f"--out={tmp_path}/half", options[0])
    assert not (tmp_path / "half").exists()


def test_users_in_two_splits_are_counted(list_source, few_rows, tmp_path, capsys):
    store = prepare_store(list_source(few_rows), tmp_path / "apart")
    assert store.users_shared_with_train == {"heldout": 0, "test": 0}
    again = (
        *few_rows,
        ("ann", "answer", "", "later words", "test"),
        ("ben", "answer", "", "later words", "test"),
        ("ben", "answer", "", "more of them", "test"),
        ("ben", "answer", "", "and here", "heldout"),
    )
    store = prepare_store(list_source(again), tmp_path / "shared")
    assert store.users_shared_with_train == {"heldout": 1, "test": 2}
    shown = prepare._about_people(store)
    assert "1 in heldout, 2 in test" in shown
    assert "computed on training users' data" in shown


def test_what_was_drawn_outlives_a_failure(tmp_path, monkeypatch):
    """The folder of a failed preparation goes, unless it is the account of noise."""

    def fail(*_, **__):
        raise ValueError("the input is wrong")

    monkeypatch.setattr(encode, "map_words", fail)
    with pytest.raises(ValueError, match="input is wrong"):
        prepare_store(SOURCE, tmp_path / "store", selection=NOISY)
    assert (tmp_path / "store.partial" / "vocabulary.json").exists()
    with pytest.raises(ValueError, match="input is wrong"):
        prepare_store(SOURCE, tmp_path / "plain")
    assert not (tmp_path / "plain.partial").exists()
