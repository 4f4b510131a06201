"""Text that users write: markup, quotes and commands stay text wherever it is shown."""

import os
import re
import shutil
import subprocess
import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tensorboard.backend.event_processing import event_accumulator

from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore
from stackoverflow.task import StackOverflow
from tests.experiment.train_binary import tiny_config
from tff_agg.experiment import terminal
from tff_agg.experiment.commands import report, runs
from tff_agg.experiment.run import run as training
from tff_agg.experiment.study import show
from tff_agg.recycling.methods import parse_methods

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="neither chromium nor google-chrome is installed"
)
#: No white space, at which sentences are cut, and no slash, which no file name holds.
SCRIPT = "<script>document.title='run'</script>"
IMAGE = "<img\tsrc=x\nonerror=document.title='run'>"
QUOTES = "\"'><svg onload=document.title='run'>&amp;"
COMMANDS = "\x1b]0;run\x07\x1b[2J\x08\x9b31m\u202e\0"
HOSTILE = SCRIPT + IMAGE + QUOTES + COMMANDS
WORD = "".join(c for c in HOSTILE if not c.isspace() and c != "\0")


class HostileSource(SyntheticSource):
    """Made-up sentences of users with bad names, who write bad words."""

    def read(self, shard):
        """Yields the sentences."""
        for batch in super().read(shard):
            columns = {name: batch.column(name) for name in batch.schema.names}
            names = [HOSTILE + name for name in columns["client_id"].to_pylist()]
            columns["client_id"] = pa.array(names)
            columns["tokens"] = pc.replace_substring(columns["tokens"], "a", WORD)
            yield pa.RecordBatch.from_pydict(columns, schema=batch.schema)


def in_a_name(text):
    """Returns what of a text can be in the name of a file."""
    return text.replace("/", "").replace("\0", "")[:200]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run: bad data in a bad folder, under a bad name."""
    top = tmp_path_factory.mktemp("top") / in_a_name(HOSTILE)
    source = HostileSource(users=60, words=40, seed=1)
    store = prepare_store(source, top / "store", vocab_size=40, max_tokens=6)
    assert any(WORD in word for word in store.vocabulary.words)
    assert store.user_name(0).startswith(HOSTILE)
    task = StackOverflow(tiny_config(store.path, insecure_noise_seed=3))
    training.run(task, top / in_a_name(HOSTILE))
    return top / in_a_name(HOSTILE)


@pytest.fixture(scope="module")
def page(run):
    wanted = parse_methods("uta:2")
    config = report.ReportConfig(run=str(run), methods=wanted, examples=60)
    return report.write(StackOverflow, config)


def browse(path, tmp_path, *flags):
    """Loads a page in a browser, with all its scripts; returns what it prints."""
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=3000", *flags, path.as_uri()],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def elements(dom):
    return set(re.findall(r"<([a-z]+)", dom.lower()))


@needs_browser
def test_the_browser_of_these_tests_would_run_it(tmp_path):
    """Else the tests below could not fail."""
    for text in (SCRIPT, IMAGE, QUOTES):
        path = tmp_path / "page.html"
        path.write_text(f"<title>quiet</title><p>{text}</p>")
        assert "<title>run</title>" in browse(path, tmp_path, "--dump-dom")


@needs_browser
def test_the_report_shows_names_and_runs_none_of_them(run, page, tmp_path):
    copy = tmp_path / "copy.html"
    shutil.copy(page, copy)
    dom = browse(copy, tmp_path, "--dump-dom")
    title, _, body = dom.partition("</title>")
    assert "<title>run" not in title and "stackoverflow: &lt;script&gt;" in title
    assert not {"script", "svg", "iframe"} & elements(dom)
    assert re.findall(r"<img [^>]*src=\"(.{10})", dom) == ["data:image"]
    assert "onerror=document.title=" in body, "the name is there, as text"
    shot = tmp_path / "shot.png"
    browse(copy, tmp_path, f"--screenshot={shot}", "--window-size=800,600")
    assert shot.stat().st_size > 5000


@needs_browser
@pytest.mark.parametrize("text", [SCRIPT, IMAGE, QUOTES, COMMANDS])
def test_a_table_of_a_study_shows_it(tmp_path, text):
    table = show.Table([text, "value"], [[text, text]], title=text, marked=[(0, 0)])
    path = tmp_path / "table.html"
    path.write_text(f"<title>quiet</title>{show.render(table, 'html')}")
    dom = browse(path, tmp_path, "--dump-dom")
    assert "<title>quiet</title>" in dom
    assert not {"script", "svg", "img"} & elements(dom)


def test_files_are_not_named_by_users(run):
    folders = [run, run.parent / "store"]
    names = [p.name for folder in folders for p in folder.rglob("*")]
    assert len(names) > 20
    assert [n for n in names if not re.fullmatch(r"\.?[\w.-]+", n, re.ASCII)] == []


def test_event_files_hold_no_text_of_users(run):
    (path,) = (run / "tensorboard").glob("events.*")
    assert b"document" not in path.read_bytes()
    events = event_accumulator.EventAccumulator(os.fspath(path.parent)).Reload()
    tags = events.Tags()["tensors"]
    assert len(tags) > 5
    assert [tag for tag in tags if not re.fullmatch(r"[\w./-]+", tag, re.ASCII)] == []


def commands_in(text):
    """Returns the characters that a terminal may take for a command."""
    return [c for c in text if unicodedata.category(c).startswith("C") and c != "\n"]


def test_a_list_of_runs_commands_no_terminal(run, capsys):
    assert runs.run(StackOverflow, [os.fspath(run.parent)]) == 0
    shown = capsys.readouterr().out
    assert "<script>document" in shown
    assert commands_in(shown) == []


def test_predicted_words_command_no_terminal():
    shown = show.render(show.Table(["next word", "%"], [[WORD, "12.5"]]))
    assert "<script>" in shown and commands_in(shown) == []


def test_an_error_commands_no_terminal(capsys):
    with pytest.raises(SystemExit), terminal.plain_errors():
        raise ValueError(f"{HOSTILE}: is no folder")
    shown = capsys.readouterr().err
    assert "is no folder" in shown and commands_in(shown) == []


def test_a_store_gives_names_and_words_back_as_they_were(run):
    store = TokenStore.open(run.parent / "store")
    users = [
        user for split in ("train", "heldout", "test") for user in store.users(split)
    ]
    names = {store.user_name(user) for user in users}
    assert len(names) == len(users)
    assert all(name.startswith(HOSTILE) for name in names)
