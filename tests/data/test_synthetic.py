"""What the embedded data promises."""

import collections
import hashlib

import numpy as np
import pyarrow as pa
import pytest

from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import SCHEMA, SPLITS, checked
from stackoverflow.data.synthetic import SyntheticSource, word_text

PINNED = "a8d012faf07a91cca5a77c9dc3df203902797ba67ac5aa5d0d5b6c54782ccc23"


def table(source):
    return pa.Table.from_batches(
        [batch for shard in range(source.num_shards()) for batch in source.read(shard)]
    )


def text_hash(rows):
    digest = hashlib.sha256()
    for row in rows.to_pylist():
        digest.update("|".join(row.values()).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def source():
    return SyntheticSource(users=3000, seed=5)


@pytest.fixture(scope="module")
def store(source, tmp_path_factory):
    return prepare_store(source, tmp_path_factory.mktemp("synthetic") / "store")


def test_a_seed_gives_the_same_sentences_on_every_machine():
    made = table(SyntheticSource(users=50, words=64, seed=1))
    assert text_hash(made) == PINNED
    assert text_hash(table(SyntheticSource(users=50, words=64, seed=2))) != PINNED


def test_shards_can_be_read_in_any_order(source):
    second, first = (pa.Table.from_batches(source.read(i)) for i in (1, 0))
    again = SyntheticSource(users=3000, seed=5)
    assert pa.Table.from_batches(again.read(0)).equals(first)
    assert pa.Table.from_batches(again.read(1)).equals(second)
    assert source.num_sentences() == first.num_rows + second.num_rows


def test_batches_have_the_schema_and_all_splits(source):
    for batch in source.read(0):
        assert batch.schema == SCHEMA
        checked(batch, "here")
    assert set(table(SyntheticSource(users=10))["split"].to_pylist()) == set(SPLITS)


def test_user_sizes_have_a_heavy_tail(store):
    sizes = np.sort([store.num_sentences(user) for user in store.users("train")])[::-1]
    assert np.median(sizes) < 0.6 * sizes.mean()
    largest_share = sizes[: len(sizes) // 10].sum() / sizes.sum()
    assert largest_share > 0.35
    assert sizes.max() > 20 * np.median(sizes)


def test_users_ask_answer_or_do_both(store):
    asks = set(store.users_with("train", "question").tolist())
    answers = set(store.users_with("train", "answer").tolist())
    assert len(asks & answers) > 0.3 * len(asks | answers)
    assert len(asks - answers) > 0.1 * len(asks)
    assert len(answers - asks) > 0.1 * len(answers)


def predictor(rows, order):
    """Returns the most frequent next id after each context of up to `order` ids."""
    counts = collections.defaultdict(collections.Counter)
    for row in rows.tolist():
        for i in range(1, len(row)):
            if row[i] == 0:
                break
            for length in range(order + 1):
                counts[tuple(row[max(0, i - length) : i])][row[i]] += 1
    return {context: count.most_common(1)[0][0] for context, count in counts.items()}


def accuracy(best, rows, order, eos):
    """Returns the share of words that `best` predicts, ends of sentences left out."""
    right = total = 0
    for row in rows.tolist():
        for i in range(1, len(row)):
            if row[i] in (0, eos):
                break
            for length in range(order, -1, -1):
                guess = best.get(tuple(row[max(0, i - length) : i]))
                if guess is not None:
                    break
            right += guess == row[i]
            total += 1
    return right / total


@pytest.mark.parametrize("type", ["question", "answer"])
def test_two_words_of_context_tell_more_than_one_and_one_more_than_none(store, type):
    train = store.sample_rows("train", 6000, 0, type)
    heldout = store.sample_rows("heldout", 1000, 0, type)
    eos = store.vocabulary.eos
    none, one, two = (
        accuracy(predictor(train, order), heldout, order, eos) for order in range(3)
    )
    assert one > none + 0.05
    assert two > one + 0.08


def test_a_model_of_one_type_is_wrong_about_the_other(store):
    eos = store.vocabulary.eos
    heldout = {
        type: store.sample_rows("heldout", 1000, 0, type)
        for type in ("question", "answer")
    }
    for type, other in (("question", "answer"), ("answer", "question")):
        best = predictor(store.sample_rows("train", 6000, 0, type), 2)
        own = accuracy(best, heldout[type], 2, eos)
        foreign = accuracy(best, heldout[other], 2, eos)
        assert foreign < 0.5 * own


def test_words_follow_a_zipf_like_law_and_users_have_topics(store):
    rows = store.sample_rows("train", 20_000, 0)
    counts = np.bincount(rows.ravel(), minlength=store.vocabulary.num_ids)[1:-3]
    share = np.sort(counts)[::-1].cumsum() / counts.sum()
    assert share[len(share) // 10] > 0.5
    assert (counts > 0).mean() > 0.9

    # Halves of one user's sentences are more alike than halves of two users'.
    def histogram(part):
        words = np.bincount(part.ravel(), minlength=store.vocabulary.num_ids)[1:-3]
        return words / np.linalg.norm(words)

    users = [
        user
        for user in store.users_with("train", "answer")
        if store.num_sentences(user, "answer") >= 60
    ][:40]
    halves = [np.array_split(store.rows(u, type="answer"), 2) for u in users]
    pairs = [(histogram(a), histogram(b)) for a, b in halves]
    own = np.mean([a @ b for a, b in pairs])
    foreign = np.mean(
        [pairs[i][0] @ pairs[j][1] for i in range(len(pairs)) for j in range(i)]
    )
    assert own > foreign + 0.02


def test_words_have_different_texts():
    texts = [word_text(i) for i in range(20_000)]
    assert len(set(texts)) == len(texts)
    assert all(text.isalpha() for text in texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": 3}, "users=3"),
        ({"words": 9}, "words=9"),
        ({"max_sentences": 1}, "max_sentences=1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyntheticSource(**arguments)
