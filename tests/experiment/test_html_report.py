"""The page of a run: complete, self-contained, and shown by a real browser."""

import html.parser
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib import image

from stackoverflow.task import StackOverflow
from tests.experiment.train_binary import tiny_config
from tff_agg import privacy
from tff_agg.experiment.commands import report
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run import tables
from tff_agg.experiment.study import show
from tff_agg.recycling.methods import parse_methods

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# In which θ^AGG is drawn.
BLUE = (0, 114, 178)


@pytest.fixture(scope="module")
def run(token_store, cache, tmp_path_factory):
    config = tiny_config(token_store)
    folder = tmp_path_factory.mktemp("reported") / "a <b> & c"
    training.run(StackOverflow(config), folder, compiled=cache)
    return folder


@pytest.fixture(scope="module")
def page(run):
    wanted = parse_methods("uta:2,50 ema:0.9,0.9999")
    config = report.ReportConfig(run=str(run), methods=wanted, examples=60)
    path = report.write(StackOverflow, config)
    assert path == run / "report.html"
    return path


class Reader(html.parser.HTMLParser):
    """Gathers text, tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def test_it_tells_what_a_colleague_asks_for(run, page):
    text = " ".join(" ".join(Reader(page.read_text()).words).split())
    assert "stackoverflow: a <b> & c" in text
    assert re.search(r"6 of 6 rounds with 4 users each\. User-level .*: ε = \d", text)
    for part in ("Enforced by the code:", "Not covered:", "UTA_inf 2", "EMA_inf 0.9"):
        assert part in text
    assert "UTA_inf 50" not in text, "there are only 7 checkpoints"
    assert "± standard deviation" in text and "noise_multiplier 0.5 given" in text
    (score,) = tables.read_columns(
        run / "test.csv", {"weights": "aggregate", "group": "all"}
    )["loss"]
    assert f"{score:.4f}" in text


def test_it_needs_nothing_from_elsewhere_and_runs_nothing(page):
    read = Reader(page.read_text())
    assert not {"script", "link", "iframe"} & set(read.tags)
    sources = [value for name, value in read.attributes if name in ("src", "href")]
    assert len(sources) == 1
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    # Neither what clients measured without noise, nor where the data lie.
    text = page.read_text()
    assert "update_norm" not in text and "store" not in "".join(read.words).split()


def test_text_cannot_become_markup():
    bad = "<script>alert(1)</script>"
    table = show.Table([bad, ""], [[bad, bad]])
    guarantee = {"statement": bad, "epsilon": None}
    listed = {key: [bad, "a & b"] for key in ("enforced", "assumed", "not_covered")}
    text = report.page(
        title=bad, rounds=bad, guarantee=None,
        privacy={"guarantee": guarantee, **listed}, facts=table,
        below=bad,
        audit={"paragraph": bad, "table": table, "refuted": True, "picture": bad},
        membership={"paragraph": bad, "table": table, "picture": bad},
        curves=bad, tested=table, methods=table,
        config=report.ReportConfig(run=bad), uncertainty={"reason": bad},
        settings=table, fingerprint=bad, environment=bad,
    )  # fmt: skip
    assert "script" not in Reader(text).tags
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 35


FINDING = {
    "threat": "every released model", "claimed": None, "estimate": 1.25,
    "interval": [0.5, 2.0], "lower_bound": 0.4, "correct": 60, "canaries": 100,
    "refutes_claim": False,
}  # fmt: skip


@pytest.mark.parametrize("refuted", [False, True])
def test_an_audit_that_was_run_before_is_on_the_page(run, tmp_path, refuted):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "audit").mkdir()
    (copy / "audit" / "scores.png").write_bytes(b"a picture")
    found = FINDING | {"refutes_claim": refuted}
    privacy.add_audit(copy, {"findings": [found], "paragraph": "What it rests on."})
    config = report.ReportConfig(run=str(copy), methods=(), examples=60)
    read = Reader(report.write(StackOverflow, config).read_text())
    text = " ".join(" ".join(read.words).split())
    figures = "every released model inf 1.250 0.500 to 2.000 0.400 60 of 100"
    assert "What it rests on." in text and figures in text
    assert ("the claim is refuted" in text) == refuted
    assert ("src", "data:image/png;base64,YSBwaWN0dXJl") in read.attributes


def test_a_run_without_validation_is_reported(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "privacy_report.json").unlink()
    book = copy / "ledger.jsonl"
    lines = book.read_text().splitlines(keepends=True)
    judged = ('"kind":"reported"', '"kind":"tested"')
    book.write_text("".join(x for x in lines if not any(k in x for k in judged)))
    config = report.ReportConfig(
        run=str(copy), out=str(tmp_path / "x.html"), methods=(), examples=60
    )
    text = report.write(StackOverflow, config).read_text()
    assert "not been validated yet" in text and "no privacy report" in text


@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome here")
def test_a_browser_shows_it_with_its_pictures(page, tmp_path):
    shot = tmp_path / "shot.png"

    def browse(*flags):
        return subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
             *flags, page.as_uri()],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    loaded = browse("--dump-dom")
    assert loaded.returncode == 0, loaded.stderr
    assert "<h2>Uncertainty</h2>" in loaded.stdout
    browse(f"--screenshot={shot}", "--window-size=1000,3000")
    pixels = (255 * image.imread(shot)[..., :3]).round().astype(int)
    assert pixels.shape == (3000, 1000, 3)
    assert np.all(pixels == BLUE, axis=-1).sum() > 50, "no curve is to be seen"
