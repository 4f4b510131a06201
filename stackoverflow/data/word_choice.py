"""Chooses the words of a vocabulary: by their counts, or by votes with noise.

What a vocabulary with noise has spent is kept with it, and stays with a preparation
that is started over: the words that were replaced have been seen.
"""

import dataclasses
import logging
import math
import os

from stackoverflow.data import encode, store_manifest, votes
from stackoverflow.data.encode import Work
from stackoverflow.data.vocabulary import private_top_words, top_words
from tff_agg import noise
from tff_agg.aliases import JsonObject
from tff_agg.privacy.releases import Release
from tff_agg.privacy.selection import KeySelection
from tff_agg.runtime.job_processes import Processes

_log = logging.getLogger(__name__)

# Of mailing lists, so many times the words have half as many votes: 2 to this power.
_WORDS_PER_VOTE = 0.8
# Below it the words cost as much as a training at ε = 8.
_LEAST_MULTIPLIER = 1.0

# Files of word counts are merged in groups of about this many bytes.
_MERGE_BYTES = 1 << 25
# What vocabularies that were replaced have spent.
_SPENT = "spent.json"


def choose(
    work: Work, vocab_size: int, selection: KeySelection | None, crew: Processes
) -> JsonObject:
    """Returns the words and, if they were chosen with noise, what that has spent.

    Args:
      work: The preparation, with all pieces and, for a selection, all votes.
      vocab_size: The most words to choose.
      selection: How to choose with noise; None counts occurrences as they are.
      crew: The processes that do it.
    """
    if selection is None:
        return _plain_words(work, vocab_size, crew)
    return _private_words(work, vocab_size, selection, crew)


def spent_before(folder: str, out: str) -> Release | None:
    """Returns what vocabularies with noise that are to be replaced have spent.

    Args:
      folder: The folder of an unfinished preparation, perhaps.
      out: The folder of a finished store, perhaps.
    """
    chosen, spent = (os.path.join(folder, n) for n in ("vocabulary.json", _SPENT))
    unfinished = encode.read_json(chosen) if os.path.exists(chosen) else {}
    entries = [unfinished.get("release")]
    if os.path.exists(spent):
        # It was started over. The release of words chosen since includes what this file
        # says, and that includes the finished store's.
        entries = [entries[0] or encode.read_json(spent)]
    elif os.path.exists(os.path.join(out, store_manifest.MANIFEST)):
        entries.append(store_manifest.read_manifest(out).get("vocabulary_release"))
    releases = [Release.from_json(entry) for entry in entries if entry is not None]
    return _together(releases) if releases else None


def note_spent(folder: str, spent: Release | None) -> None:
    """Keeps what was spent before in the folder of a preparation that starts over."""
    if spent is not None:
        encode.write_json(os.path.join(folder, _SPENT), spent.to_json())


def _together(releases: list[Release]) -> Release:
    """Returns one release that stands for several."""
    if len(releases) == 1:
        return releases[0]
    return Release(
        releases[0].name,
        math.fsum(release.rho for release in releases),
        math.fsum(release.delta for release in releases),
        "; and, replaced since: ".join(release.method for release in releases),
        is_gaussian=all(release.is_gaussian for release in releases),
    )


def _plain_words(work: Work, vocab_size: int, crew: Processes) -> JsonObject:
    """Chooses the most frequent words of the train split, as they are."""
    pieces = [work.path("pieces", f"{p}.words.arrow") for p in work.pieces()]
    counts = _merged_counts(pieces, work, crew)
    words, distinct = top_words(
        [encode.iterate_counts(path) for path in counts], vocab_size
    )
    if not words:
        raise ValueError(
            "the train split has no words, and the vocabulary is made from it"
        )
    if len(words) < vocab_size:
        _log.warning(
            "vocab_size=%d, but the train split has only %d different words",
            vocab_size,
            distinct,
        )
    return {"words": words, "distinct": distinct}


def _private_words(
    work: Work, vocab_size: int, selection: KeySelection, crew: Processes
) -> JsonObject:
    """Chooses words by the noisy votes of train users.

    The noise is drawn once: a killed preparation reads what was chosen, and one that
    was killed before has shown nobody anything.
    """
    parts = [votes.votes_path(bucket, work) for bucket in range(work.buckets)]
    counts = _merged_counts(parts, work, crew)
    words, passed = private_top_words(
        [encode.iterate_counts(path) for path in counts],
        vocab_size,
        selection,
        # Nobody keeps the seed.
        noise.fresh_seed(),
    )
    if not words:
        raise ValueError(
            f"no word has more than {selection.threshold:.4g} noisy votes of train "
            "users, so that the vocabulary would be empty; use a smaller noise "
            f"multiplier than {selection.noise_multiplier:g}, a smaller cap than "
            f"{selection.cap}, or data of more users"
        )
    if len(words) < vocab_size:
        _log.warning("%s", too_few(vocab_size, passed, selection))
    releases = [selection.release("vocabulary")]
    if os.path.exists(work.path(_SPENT)):
        releases.append(Release.from_json(encode.read_json(work.path(_SPENT))))
    return {"words": words, "release": _together(releases).to_json()}


def too_few(vocab_size: int, passed: int, selection: KeySelection) -> str:
    """Says what would help where few words have passed, and what it would give.

    It looks at nothing but how many words have passed, which has noise.

    Args:
      vocab_size: How many words were asked for.
      passed: How many passed.
      selection: How they were chosen.
    """
    passing = (
        f"vocab_size={vocab_size}, but only {passed} words have more than "
        f"{selection.threshold:.4g} noisy votes of users; all others are unknown words."
    )
    # How much lower the threshold has to be, and with it the noise.
    share = (passed / vocab_size) ** (1 / _WORDS_PER_VOTE)
    wanted = max(selection.noise_multiplier * share, _LEAST_MULTIPLIER)
    multiplier = float(f"{wanted:.2g}")
    if multiplier >= selection.noise_multiplier:
        return f"{passing} More users, or a larger --vocab_user_cap, would help."
    other = dataclasses.replace(selection, noise_multiplier=multiplier)
    more = passed * (selection.threshold / other.threshold) ** _WORDS_PER_VOTE
    more = min(round(more, -1), vocab_size)
    return (
        f"{passing} --vocab_noise_multiplier={multiplier:g} asks for "
        f"{other.threshold:.4g} votes, which about {more:.0f} words "
        f"may have, for ρ = {other.rho:.3g} instead of {selection.rho:.3g}; a larger "
        "--vocab_user_cap lets users vote for more words each."
    )


def _merged_counts(paths: list[str], work: Work, crew: Processes) -> list[str]:
    """Merges files of word counts in groups; returns the merged files."""
    groups: list[list[str]] = []
    room = 0
    for path in paths:
        if not groups or room < os.path.getsize(path):
            groups.append([])
            room = _MERGE_BYTES
        groups[-1].append(path)
        room -= os.path.getsize(path)
    merged = [work.path("counts", f"{i:06d}.arrow") for i in range(len(groups))]
    for ended in crew.spread(_merge, zip(groups, merged, strict=True)):
        ended.result()
    return merged


def _merge(group: tuple[list[str], str]) -> None:
    """Merges the files of a group into one."""
    encode.merge_counts(*group)
