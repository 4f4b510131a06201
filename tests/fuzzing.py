"""Damage to files, drawn by hypothesis: what strangers, disks and editors leave.

`FUZZ=20 pytest …` tries twenty times as many examples as the suite does, and other ones
each time; the suite tries the same ones always.
"""

import contextlib
import os
import signal

import hypothesis
from hypothesis import strategies as st

_FACTOR = int(os.environ.get("FUZZ", "0"))
#: Seconds that one example may take.
_LONGEST = 30

# Pieces that readers of JSON, CSV, Arrow, SQLite and numbers stumble over.
_ODD = st.sampled_from(
    [
        *(b"", b"\0", b"\xff", b"\n", b"\r\n", b'"', b",", b"{}", b"[]", b"null"),
        *(b"-1", b"0.5", b"NaN", b"1e999", b"true", b'"\\ud800"', b"\xed\xa0\x80"),
        *(b"9" * 5000, b"[" * 20_000, b'{"a":' * 20_000, b"9223372036854775807"),
        *(b"\xff" * 8, b"\0" * 4096, b"\x7f\xff\xff\xff", b"<script>", b"\xef\xbb\xbf"),
    ]
)
_PLACE = st.floats(0, 1, exclude_max=True)
_PIECE = st.one_of(_ODD, st.binary(max_size=12))
#: Edits of a file's bytes: kind, place, how many bytes, what is put there.
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "put", "cut", "end", "copy"]),
        _PLACE,
        st.integers(1, 40),
        _PIECE,
    ),
    min_size=1,
    max_size=3,
)
#: Values that JSON can hold.
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from([0, 1, -1, "", "O", "|O", "../x", "\0", "\ud800", 2**63]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=4,
)
#: Edits of JSON: which of its places, and what stands there then (None: it goes).
JSON_EDITS = st.lists(
    st.tuples(_PLACE, st.one_of(st.none(), JSON.map(lambda value: [value]))),
    min_size=1,
    max_size=2,
)


def examples(number):
    """Returns settings of hypothesis for a test that tries `number` examples."""
    return hypothesis.settings(
        max_examples=number * max(1, _FACTOR),
        derandomize=not _FACTOR,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@contextlib.contextmanager
def no_hang():
    """Fails where an example takes long."""

    def strike(*_):
        raise AssertionError(f"took more than {_LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, strike)
    signal.alarm(_LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def edited(content, edits):
    """Returns bytes after edits."""
    content = bytearray(content)
    for kind, place, size, piece in edits:
        at = int(place * len(content))
        match kind:
            case "flip" if content:
                content[at] ^= 1 << size % 8
            case "put":
                content[at:at] = piece
            case "cut":
                del content[at : at + size]
            case "end":
                del content[at:]
            case "copy":
                content[at : at + len(piece)] = piece
    return bytes(content)


def edited_json(value, edits):
    """Returns JSON after edits."""
    for place, new in edits:
        places = list(_places(value))
        path = places[int(place * len(places))]
        value = _replaced(value, path, new)
    return value


def _places(value, path=()):
    """Yields the paths to all parts of a JSON value, itself first."""
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _places(value[key], (*path, key))


def _replaced(value, path, new):
    """Returns JSON with another value (or none) at a path."""
    if not path:
        return None if new is None else new[0]
    changed = value.copy()
    if len(path) == 1 and new is None:
        del changed[path[0]]
    else:
        changed[path[0]] = _replaced(value[path[0]], path[1:], new)
    return changed
