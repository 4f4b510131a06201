"""The examples in docstrings say what the code does."""

import contextlib
import doctest
import importlib
import pathlib

import numpy as np
import pytest

import tff_agg
from tff_agg import noise, privacy

ROOT = pathlib.Path(__file__).parents[2]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


PLAN = privacy.Plan(
    clip_norm=1.0,
    cohort_size=100,
    rounds=2000,
    mechanism=noise.tree(),
    noise_multiplier=0.341,
)
GIVEN = {
    "AtMostOnce": privacy.AtMostOnce,
    "contextlib": contextlib,
    "identity": noise.identity,
    "np": np,
    "plan": PLAN,
    "tff_agg": tff_agg,
    "tree": noise.tree,
    "weights": [np.zeros(1000, np.float32)],
}


def modules_with_examples():
    for package in ("tff_agg", "pds", "stackoverflow", "cifar", "pcvr", "examples"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>>" in path.read_text("utf-8"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of(name, tmp_path, monkeypatch):
    """Runs them with an empty `folder`, the `plan` of the README and some modules."""
    monkeypatch.chdir(tmp_path)  # what they write is not the checkout's
    module = importlib.import_module(name)
    given = GIVEN | {"folder": tmp_path}
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    examples = [test for test in found if test.examples]
    assert examples
    report: list[str] = []
    for test in examples:
        test.globs = given | vars(module)
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
