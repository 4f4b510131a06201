"""What the token store promises."""

import concurrent.futures
import json
import pickle
import shutil

import numpy as np
import pytest

from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.store_manifest import TokenStoreError
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    source = SyntheticSource(users=300, words=100, seed=2)
    return prepare_store(source, tmp_path_factory.mktemp("data") / "store")


@pytest.fixture
def few(list_source, few_rows, tmp_path):
    return prepare_store(list_source(few_rows), tmp_path / "few", vocab_size=5)


def number(store, split, name):
    (user,) = [u for u in store.users(split) if store.user_name(u) == name]
    return user


def texts(store, rows):
    return sorted(store.vocabulary.decode(row) for row in rows)


def test_users_are_by_split_and_sorted_by_name(few):
    names = {
        split: [few.user_name(user) for user in few.users(split)]
        for split in ("train", "heldout", "test")
    }
    assert names == {"train": ["ann", "ben"], "heldout": ["cat"], "test": ["dan"]}


def test_vocabulary_is_the_top_of_train_only(few):
    # 27 the, 4 loop, 2 a end is; '?', slow, use, why once: out
    assert few.vocabulary.words == ("the", "loop", "a", "end", "is")


def test_rows_are_the_sentences_of_the_type(few):
    ben = number(few, "train", "ben")
    assert few.num_sentences(ben) == 4
    assert few.num_sentences(ben, "question") == few.num_sentences(ben, "answer") == 2
    assert texts(few, few.rows(ben, type="question")) == [
        "<bos> is a loop <eos>",
        "<bos> the loop <eos>",
    ]
    cut = "<bos> " + " ".join(["the"] * 20)
    assert texts(few, few.rows(ben, type="answer")) == [
        "<bos> <oov> a loop <eos>",
        cut,
    ]
    assert len(few.rows(ben)) == 4
    ann = number(few, "train", "ann")
    assert few.rows(ann, type="answer").shape == (0, 21)
    assert texts(few, few.rows(ann)) == [
        "<bos> <oov> is the loop <oov> <oov> <eos>",
        "<bos> the end <eos>",
    ]
    assert few.users_with("train", "answer").tolist() == [ben]
    assert few.users_with("train", "question").tolist() == [ann, ben]
    dan = number(few, "test", "dan")
    assert texts(few, few.rows(dan)) == ["<bos> <oov> <oov> <oov> <eos>"]


def test_days_are_kept_and_may_be_missing(few):
    ben, cat = number(few, "train", "ben"), number(few, "heldout", "cat")
    assert few.dates(ben, "question").tolist() == [
        np.datetime64("2011-05-06").item(),
        np.datetime64("2012-07-08").item(),
    ]
    assert np.isnat(few.dates(cat)).all()


def test_the_summary_counts(few):
    assert few.summary["train"] == {
        "users": 2,
        "questions": 4,
        "answers": 2,
        "sentences": 6,
        "tokens": 3 + 6 + 2 + 20 + 2 + 3,
        "oov_share": 4 / 36,
    }
    assert few.summary["heldout"]["oov_share"] == pytest.approx(9 / 11)


def test_the_order_is_a_function_of_seed_round_and_user(store):
    user = int(max(store.users("train"), key=store.num_sentences))
    rows = store.rows(user, seed=1, round=4)
    again = TokenStore.open(store.path).rows(user, seed=1, round=4)
    assert np.array_equal(rows, again)
    for other in ({"seed": 2, "round": 4}, {"seed": 1, "round": 5}):
        changed = store.rows(user, **other)
        assert not np.array_equal(rows, changed)
        if store.num_sentences(user) <= 256:
            assert texts(store, rows) == texts(store, changed)


def test_sentences_are_shuffled_before_they_are_cut(store):
    user = int(max(store.users("train"), key=store.num_sentences))
    count = store.num_sentences(user)
    assert count > 100
    whole = store.rows(user, max_sentences=None, seed=1, round=0)
    assert len(whole) == count
    assert np.array_equal(store.rows(user, max_sentences=10, seed=1), whole[:10])
    assert store.rows(user).shape == (min(count, 256), 21)
    # Every sentence has the same chance to survive the cut.
    seen = set()
    for round_num in range(60):
        rows = store.rows(user, max_sentences=count // 10, round=round_num)
        seen.update(map(bytes, rows))
    assert len(seen) > 0.95 * len(set(map(bytes, whole)))


def test_rows_are_well_formed(store):
    vocabulary = store.vocabulary
    for split in ("train", "heldout", "test"):
        rows = np.concatenate([store.rows(user) for user in store.users(split)])
        assert rows.dtype == np.int32 and rows.shape[1] == 21
        assert (rows[:, 0] == vocabulary.bos).all()
        assert (rows[:, 1:] != vocabulary.bos).all()
        lengths = (rows != 0).sum(axis=1)
        padded = rows == 0
        assert (padded == (np.arange(21) >= lengths[:, None])).all()
        short = lengths < 21
        last = rows[np.arange(len(rows)), lengths - 1]
        assert (last[short] == vocabulary.eos).all()
        assert ((rows == vocabulary.eos).sum(axis=1) <= 1).all()
        assert short.any() and (~short).any()


@pytest.mark.parametrize("type", [None, "question", "answer"])
def test_samples_are_fixed_different_sentences_of_the_split(store, type):
    sample = store.sample_rows("heldout", 200, seed=3, type=type)
    assert sample.shape == (200, 21)
    assert np.array_equal(sample, store.sample_rows("heldout", 200, 3, type))
    assert not np.array_equal(sample, store.sample_rows("heldout", 200, 4, type))
    everything = store.sample_rows("heldout", 10**9, seed=3, type=type)
    own = np.concatenate(
        [
            store.rows(user, type=type, max_sentences=None)
            for user in store.users("heldout")
        ]
    )
    assert sorted(map(bytes, everything)) == sorted(map(bytes, own))
    remaining = list(map(bytes, own))
    for row in sample:  # each drawn at most once: a sub-multiset
        remaining.remove(bytes(row))


def test_pickles_and_threads_read_the_same(store):
    users = store.users("train")[:60]
    expected = [store.rows(int(user), seed=9) for user in users]
    copy = pickle.loads(pickle.dumps(store))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda user: copy.rows(int(user), seed=9), users))
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_pickle_opens_the_same_store_only(few, tmp_path):
    saved = pickle.dumps(few)
    shutil.rmtree(tmp_path / "few")
    prepare_store(SyntheticSource(users=30, words=40, seed=2), tmp_path / "few")
    with pytest.raises(TokenStoreError, match="it is another store"):
        pickle.loads(saved)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.users("validation"), "split='validation'"),
        (lambda s: s.users_with("train", "comment"), "type='comment'"),
        (lambda s: s.rows(10**6), "user=1000000"),
        (lambda s: s.rows(-1), "user=-1"),
        (lambda s: s.rows(0, max_sentences=0), "max_sentences=0"),
        (lambda s: s.sample_rows("train", 0, 1), "n=0"),
    ],
)
def test_wrong_arguments_are_named(store, call, message):
    with pytest.raises(ValueError, match=message):
        call(store)


def flip_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_manifest(path):
    manifest = json.loads(path.read_text())
    manifest["max_tokens"] = 19
    path.write_text(json.dumps(manifest))


def other_version(path):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"version": 99}))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("manifest.json", lambda p: p.unlink(), "no token store"),
        ("manifest.json", lambda p: p.write_text("{"), "not JSON"),
        ("manifest.json", lambda p: p.write_text("[]"), "not the manifest"),
        ("manifest.json", edit_manifest, "its checksum is wrong"),
        ("manifest.json", other_version, "version 99"),
        ("vocabulary.json", flip_byte, "vocabulary.json is damaged"),
        ("users.arrow", flip_byte, "users.arrow is damaged"),
        ("users.arrow", lambda p: p.unlink(), "users.arrow is missing"),
        ("part-00000.arrow", lambda p: p.unlink(), "part-00000.arrow is missing"),
        ("part-00000.arrow", lambda p: p.write_bytes(b"x"), "has 1 bytes"),
    ],
)
def test_a_damaged_store_is_refused(store, tmp_path, file, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)
    TokenStore.open(copy, verify=True)
    damage(copy / file)
    with pytest.raises(TokenStoreError, match=message):
        TokenStore.open(copy)


def test_damaged_sentences_never_reach_training(store, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)
    flip_byte(copy / "part-00000.arrow")
    opened = TokenStore.open(copy)
    with pytest.raises(TokenStoreError, match=r"part-00000.arrow is damaged"):
        opened.rows(0)
    with pytest.raises(TokenStoreError, match=r"part-00000.arrow is damaged"):
        TokenStore.open(copy, verify=True)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TokenStoreError, match="no token store"):
        TokenStore.open(tmp_path / "nothing")
