"""What the vocabulary promises."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackoverflow.data.vocabulary import Vocabulary, top_words
from stackoverflow.token_ids import PAD
from tests.data.rows_by_hand import row


def test_ids_of_words_and_special_tokens():
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(10_000)))
    assert vocabulary.num_ids == 10_004
    assert vocabulary.encode("w0 w9999 nothing") == [1, 10_000, vocabulary.oov]
    assert (PAD, vocabulary.bos, vocabulary.eos, vocabulary.oov) == (
        0,
        10_001,
        10_002,
        10_003,
    )


def test_rows_end_only_if_the_sentence_does():
    vocabulary = Vocabulary(("a", "b"))
    bos, eos, oov = vocabulary.bos, vocabulary.eos, vocabulary.oov
    rows = {
        "": [bos, eos, 0, 0],
        "a": [bos, 1, eos, 0],
        "a b": [bos, 1, 2, eos],
        "a b c": [bos, 1, 2, oov],
        "a b c a": [bos, 1, 2, oov],
    }
    for sentence, expected in rows.items():
        assert row(vocabulary, sentence, max_tokens=3).tolist() == expected


def test_rows_agree_with_tff_up_to_the_numbers_of_special_tokens():
    preprocessing = pytest.importorskip(
        "tensorflow_federated.python.simulation.baselines.stackoverflow"
        ".word_prediction_preprocessing"
    )
    words = ("the", "loop", "a", "is", "?")
    vocabulary = Vocabulary(words)
    to_ids = preprocessing.build_to_ids_fn(list(words), max_sequence_length=6)
    special = preprocessing.get_special_tokens(len(words))
    ours = {
        special.beginning_of_sentence: vocabulary.bos,
        special.end_of_sentence: vocabulary.eos,
        special.out_of_vocab[0]: vocabulary.oov,
    }
    for sentence in (
        "the",
        "the loop is a loop",
        "the loop is a zebra loop",
        "a a a a a a a",
        "what is the matter with a loop ?",
    ):
        theirs = [ours.get(i, i) for i in to_ids({"tokens": sentence}).numpy().tolist()]
        ours_too = row(vocabulary, sentence, max_tokens=6)
        assert ours_too[: len(theirs)].tolist() == theirs
        assert not ours_too[len(theirs) :].any()
        assert len(ours_too) == 7


def test_decoding_reads_back():
    vocabulary = Vocabulary(("the", "loop"))
    ids = row(vocabulary, "the zebra loop", max_tokens=6)
    assert vocabulary.decode(ids) == "<bos> the <oov> loop <eos>"


@pytest.mark.parametrize("words", [(), ("a", "a")])
def test_a_vocabulary_needs_different_words(words):
    with pytest.raises(ValueError, match="words"):
        Vocabulary(words)


@given(
    st.lists(st.dictionaries(st.text(max_size=2), st.integers(0, 3)), max_size=5),
    st.integers(1, 8),
)
def test_top_words_are_those_of_a_plain_count(counts, size):
    total = collections.Counter()
    for count in counts:
        total.update(count)
    seen = {word: n for word, n in total.items() if n > 0}
    expected = sorted(seen, key=lambda word: (-seen[word], word))[:size]
    words, distinct = top_words([sorted(count.items()) for count in counts], size)
    assert list(words) == expected
    assert distinct == len(seen)


def test_ties_go_to_the_first_word():
    assert top_words([[("a", 1), ("b", 1), ("c", 2)]], 2) == (("c", "a"), 3)
    with pytest.raises(ValueError, match="size=0"):
        top_words([], 0)
