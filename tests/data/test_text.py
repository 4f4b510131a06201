"""What raw text becomes: tokens, sentences, splits, and errors with file and line."""

import functools
import json
import os

import pytest

from stackoverflow.data import text, tokenisation
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import make_source
from stackoverflow.data.text import TextSource
from tests import command_lines
from tff_agg.privacy import KeySelection


@pytest.mark.parametrize(
    "raw, expected",
    [
        ("Don't use well-known -x!", "don't use well-known - x !"),
        ("It’s my_var &lt;b&gt; 3.14", "it's my _ var < b > 3 . 14"),
        ("See (https://example.org/a,b?c=1). ok", "see ( <url> ) . ok"),
        ("WWW.Example.org: cafe\u0301 — größer", "<url> : café größer"),
        ("  \t \u2014 ", ""),
    ],
)
def test_tokens(raw, expected):
    assert " ".join(tokenisation.tokens(raw)) == expected
    assert tokenisation.tokens(" ".join(tokenisation.tokens(raw))) == expected.split()


def test_sentences():
    raw = 'It fails, e.g. here. Why? (No idea.) He said "odd!" Line\nbreaks\n\nend not'
    assert tokenisation.sentences(raw) == [
        "it fails , e . g . here .",
        "why ?",
        "( no idea . )",
        'he said " odd ! "',
        "line breaks",
        "end not",
    ]


def posts(users=60):
    """What people wrote, two posts each, the second over several lines."""
    found = []
    for number in range(users):
        user, time = f"user{number}", f"2019-02-{1 + number % 28:02} 10:00"
        rows = [
            ("question", f"How do I, say, open it? Thanks, {user}."),
            ("answer", 'It said "no, \n\nnever"'),
        ]
        found += [dict(user=user, time=time, type=t, text=raw) for t, raw in rows]
    return found


def write_csv(path, rows, columns=("user", "time", "type", "text")):
    cells = [[str(row[name]).replace('"', '""') for name in columns] for row in rows]
    lines = [",".join(columns), *(",".join(f'"{c}"' for c in cell) for cell in cells)]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n")
    return os.fspath(path)


def write_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return os.fspath(path)


def contents(store):
    """Returns the sentences of every user in each split."""
    return {
        (split, store.user_name(user)): sorted(
            store.vocabulary.decode(row) for row in store.rows(user)
        )
        for split in store.summary
        for user in store.users(split)
    }


def test_csv_and_json_make_the_same_store_of_every_user_in_one_split(tmp_path):
    csv_path = write_csv(tmp_path / "posts.csv", posts())
    store = prepare_store(TextSource(csv_path), tmp_path / "csv")
    halves = tmp_path / "halves"
    halves.mkdir()
    write_json(halves / "b.jsonl", posts()[:50])
    write_csv(halves / "a.csv", posts()[50:])
    (halves / "notes.md").write_text("not read")
    source = make_source("text", os.fspath(halves))
    assert source.num_shards() == 2
    other = prepare_store(source, tmp_path / "both", workers=2)
    assert contents(store) == contents(other)
    found = {name: split for split, name in contents(store)}
    assert found == {f"user{n}": text.split_of(f"user{n}") for n in range(60)}
    assert set(found.values()) == {"train", "heldout", "test"}
    assert store.users_shared_with_train == {"heldout": 0, "test": 0}
    train = store.summary["train"]
    assert train["answers"] == train["questions"] == 2 * train["users"]
    one = contents(store)["train", "user1"]
    assert "<bos> how do i , say , open it ? <eos>" in one
    assert '<bos> it said " no , <eos>' in one and '<bos> never " <eos>' in one


def test_the_split_is_a_function_of_the_name_alone():
    shares = [text.split_of(f"somebody {n}") for n in range(20_000)]
    assert shares.count("train") == pytest.approx(16_000, abs=300)
    assert shares.count("heldout") == pytest.approx(2_000, abs=200)
    # Other releases must not move anybody from training to testing.
    assert [text.split_of(n) for n in ("a", "b", "dan")] == ["heldout", "train", "test"]


def test_time_and_type_may_be_left_out_and_users_may_be_numbers(tmp_path):
    rows = [{"user": n, "text": f"Hello {n}"} for n in range(40)]
    rows[3] |= {"time": None, "type": ""}
    store = prepare_store(
        TextSource(write_json(tmp_path / "x.jsonl", rows)), tmp_path / "store"
    )
    assert sum(s["questions"] for s in store.summary.values()) == 40
    path = write_csv(tmp_path / "x.csv", rows, columns=("user", "text"))
    assert contents(store) == contents(
        prepare_store(TextSource(path), tmp_path / "csv")
    )


def test_a_vocabulary_with_noise_counts_for_text_too(tmp_path):
    path = write_csv(tmp_path / "x.csv", posts(200))
    # So small a δ that no word of one user gets in by chance.
    selection = KeySelection(5, 0.5, delta=1e-12)
    store = prepare_store(TextSource(path), tmp_path / "store", selection=selection)
    assert store.releases[0].rho == selection.release("vocabulary").rho
    # Words of one user alone stay out.
    assert not any(word.startswith("user") for word in store.vocabulary.words)


SECRET = "secret"
GOOD = b'{"user": "ann", "text": "fine"}\n'


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.csv", b"", r"x\.csv: the first line lacks \['user', 'text'\]"),
        ("x.csv", b"user,body\n", r"lacks \['text'\]; needed are \['user', 'text'\]"),
        ("x.csv", b"user,text,text\n", "names a column twice"),
        ("x.csv", b"user,text\na,b\nc\n", r"x\.csv, line 3: 1 fields, but .* names 2"),
        ("x.csv", b'user,text\n"a","b\nb"\n,secret\n', r"line 4: 'user' is empty"),
        ("x.csv", b'user,text\na,b\na,"secret\n', r"line 3: not CSV \(unexpected end"),
        ("x.csv", b"user,text\na,secret \xff\n", "line 2: holds bytes .* not UTF-8"),
        ("x.jsonl", GOOD + b"{secret\n", r"x\.jsonl, line 2: not JSON \(Expecting"),
        ("x.jsonl", GOOD + b"3\n", "line 2: not a JSON object"),
        ("x.jsonl", GOOD + b'{"text": "secret"}\n', "line 2: 'user' is missing"),
        ("x.jsonl", b'{"text": "secret"}\n', r"the first line lacks \['user'\]"),
        ("x.jsonl", GOOD + b'{"user": " ", "text": ""}', "line 2: 'user' is empty"),
        ("x.jsonl", GOOD + b'{"user": "a", "text": 5}', "line 2: 'text' is int"),
        (
            "x.csv",
            b"user,text,time\na,b,2020-01-02\nc,d,secret\n",
            "line 3: 'time' must start with YYYY-MM-DD or be empty",
        ),
        ("x.csv", b"user,text,type\na,b,secret\n", "line 2: 'type' must be one of"),
        ("x.csv", b"user,text\na,!?\nb,\n", "train split has no words|no sentences"),
        ("x.txt", b"hello", r"x\.txt': must be called \*\.csv or \*\.jsonl"),
    ],
)
def test_errors_name_file_and_line_and_quote_nothing(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        prepare_store(TextSource(os.fspath(tmp_path / name)), tmp_path / "store")
    assert SECRET not in str(caught.value)
    assert os.listdir(tmp_path) == [name]


def test_the_command(tmp_path, capsys):
    path = write_csv(tmp_path / "posts.csv", posts())
    prepare = functools.partial(command_lines.run, None, "stackoverflow.prepare")
    given = ["--source=text", f"--path={path}", f"--out={tmp_path / 'store'}"]
    assert prepare(*given, "--workers=1") == 0
    with pytest.raises(
        ValueError,
        match=r"--users=5 needs source=synthetic; .*--vocab_delta needs --vocab_us",
    ):
        prepare(*given, "--users=5", "--vocab_delta=0.1")
    shown = capsys.readouterr().out
    assert "0 in heldout, 0 in test" in shown
    assert "counted without noise" in shown
