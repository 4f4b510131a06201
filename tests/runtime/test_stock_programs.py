"""TFF's own programs on `local` and on its worker: the table of docs/runtime.md.

`python -m tests.runtime.test_stock_programs` prints that table anew.
"""

import logging
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.test import compiler

from tests.runtime.stock_programs import (
    CLIENTS,
    OF_THE_SAME_PARTS,
    PROGRAMS,
    Program,
)
from tff_agg import runtime
from tff_agg.runtime.compile import private_api

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "runtime.md"
SAME, SERVED, REFUSED = "same", "served by TFF's executor", "refused"


def called(program, step, state, context):
    """Calls a step in every round; returns the leaves of all results."""
    results = []
    with tff.framework.get_context_stack().install(context):
        for arguments in program.rounds:
            if program.initialize is None:
                result = step(*arguments)
            else:
                result = step(state, *arguments)
                state = result["state"] if isinstance(result, dict) else result.state
            leaves = tff.structure.from_container([result], recursive=True)
            results.append([as_array(x) for x in tff.structure.flatten(leaves)])
    return results


def as_array(leaf):
    if isinstance(leaf, tf.data.Dataset):
        leaf = list(leaf.as_numpy_iterator())
    return np.asarray(leaf)


def on_the_worker(program: Program, worker):
    """Returns whether TFF's worker runs a program, its first state and the results.

    The worker refuses secure sums. What TFF puts in their place in its own tests is
    what results are compared with then.
    """
    state = None
    if program.initialize is not None:
        with tff.framework.get_context_stack().install(worker):
            state = program.initialize()
    try:
        return True, state, called(program, program.step, state, worker)
    except runtime.ComputationError:
        with private_api.deep_messages():
            step = compiler.replace_secure_intrinsics_with_bodies(program.step)
            return False, state, called(program, step, state, worker)


def compare(program, ours, theirs):
    """Fails where two runtimes do not give the same."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert [(x.shape, x.dtype.kind) for x in mine] == [
            (x.shape, x.dtype.kind) for x in other
        ]
        if program.unordered:
            mine, other = rows(mine), rows(other)
        for a, b in zip(mine, other, strict=True):
            if program.noisy:
                check_noise(a, b)
            elif a.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, b)


def check_noise(a, b):
    """Compares mean and standard deviation, where there are enough values for that."""
    if a.size > 1000:
        scale = np.std(b)
        assert np.std(a) == pytest.approx(scale, rel=0.03)
        assert np.mean(a) == pytest.approx(np.mean(b), abs=8 * scale / a.size**0.5)


def rows(leaves):
    """Sorts lists of samples, of which several leaves may hold one part each."""
    lists = [x for x in leaves if x.ndim]
    order = sorted(range(len(lists[0])), key=lambda i: [str(x[i]) for x in lists])
    return [x[order] if x.ndim else x for x in leaves]


def outcome(program: Program, worker) -> tuple[str, str]:
    """Returns what `local` does with a program, and what TFF's worker does."""
    runs, state, theirs = on_the_worker(program, worker)
    said = []
    log = logging.getLogger("tff_agg.runtime")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        with runtime.running_on("local", lanes=2) as local:
            ours = called(program, program.step, state, local)
    except runtime.RuntimeUnsupportedError:
        return REFUSED, "runs" if runs else REFUSED
    finally:
        log.removeHandler(handler)
    compare(program, ours, theirs)
    served = any("own executor" in message for message in said)
    return SERVED if served else SAME, "runs" if runs else REFUSED


@pytest.fixture(scope="module")
def worker():
    context = runtime.create("worker", default_num_clients=CLIENTS)
    yield context
    context.close()


def printed() -> dict[str, tuple[str, str]]:
    """Returns the table of the page."""
    section = PAGE.read_text().partition("## TFF's own algorithms")[2]
    section = section.partition("\n## ")[0]
    lines = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \|$", section, re.M)
    return {name: (local, worker) for name, local, worker in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in OF_THE_SAME_PARTS])
def test_it_does_what_the_page_says(worker, name):
    assert outcome(PROGRAMS[name](), worker) == printed()[name]


def test_the_page_has_all_of_them():
    assert list(printed()) == list(PROGRAMS)


def test_what_is_left_out_is_on_the_page_as_its_parts_are():
    """All runs with `main`, which prints the page."""
    page = printed()
    for name, parts in OF_THE_SAME_PARTS.items():
        assert not OF_THE_SAME_PARTS.keys() & set(parts)
        assert page[name][0] in {page[part][0] for part in parts}


def main(*names: str) -> None:
    context = runtime.create("worker", default_num_clients=CLIENTS)
    print("| | `local` | `worker` |\n|---|---|---|")
    for name in names or PROGRAMS:
        found = outcome(PROGRAMS[name](), context)
        print(f"| `{name}` |", " | ".join(found), "|", flush=True)
    context.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
