"""Independent jobs give the same results here, in other processes and on Ray."""

import functools
import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

from tests.runtime.process_ends import assert_all_end, is_alive
from tests.runtime.spread_jobs import (
    die,
    either,
    half,
    is_loaded,
    kind,
    meet,
    process_of,
    refuse,
    sleep_for_ever,
    tell_and_halve,
    wait_for,
    what_set_up_saw,
)
from tff_agg.runtime import job_processes
from tff_agg.runtime.spread import Processes, spread

ROOT = pathlib.Path(__file__).parents[2]


def outcome(ended):
    return ended.position, ended.value, str(ended.error)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_ends_with_its_value_or_its_error(processes):
    found = sorted(map(outcome, spread(half, [8, 3, 4], processes=processes)))
    assert found == [(0, 4, "None"), (1, None, "3 is odd"), (2, 2, "None")]


def test_jobs_run_side_by_side_in_processes_of_their_own(tmp_path):
    ended = list(spread(functools.partial(meet, tmp_path), range(2), processes=2))
    assert len({os.getpid(), *(e.result() for e in ended)}) == 3
    assert not any(is_alive(e.value) for e in ended)


def test_what_jobs_tell_is_heard_before_they_end():
    heard = []
    found = spread(
        tell_and_halve,
        [8, 3, 4],
        processes=2,
        on_report=lambda *told: heard.append(told),
    )
    for ended in found:
        assert ended.position in [position for position, _ in heard]
    assert sorted(heard) == [(i, ("half of", n)) for i, n in enumerate([8, 3, 4])]
    # Who is not asked to listen does not stumble.
    assert [e.value for e in spread(tell_and_halve, [8], processes=2)] == [4]
    assert [e.value for e in spread(tell_and_halve, [8])] == [4]


def test_results_come_as_jobs_end(tmp_path):
    path = tmp_path / "the first may end"
    ended = spread(functools.partial(wait_for, path), [0, 1], processes=2)
    assert next(ended).position == 1
    path.touch()
    assert next(ended).result() == 0
    assert list(ended) == []


@pytest.mark.parametrize(("processes", "most"), [(1, 1), (2, 3)])
def test_items_are_taken_as_they_are_needed(processes, most):
    taken = []

    def items():
        for number in range(0, 20, 2):
            taken.append(number)
            yield number

    ended = spread(half, items(), processes=processes)
    first = next(ended)
    assert len(taken) <= most
    assert sorted(e.value for e in (first, *ended)) == list(range(10))


def test_the_end_of_the_iteration_drops_jobs_and_ends_those_that_have_begun(tmp_path):
    job = functools.partial(sleep_for_ever, tmp_path)
    ended = spread(job, [0, 1, 2, 3], processes=2)
    assert next(ended).error is None
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)
    ended.close()
    begun = [int(path.name) for path in tmp_path.iterdir()]
    assert len(begun) == 2
    assert_all_end(begun)
    here: list[int] = []
    for _ in spread(here.append, range(5)):
        break
    assert here == [0]


def test_a_process_that_dies_fails_its_own_job_only():
    found = {e.position: e for e in spread(die, range(5), processes=2)}
    assert [found[i].value for i in (0, 3, 4)] == [0, 3, 4]
    assert str(found[1].error).endswith("was ended by SIGKILL")
    assert str(found[2].error).endswith("was ended with code 3")


def test_results_raise_and_say_where_and_wrong_arguments_are_refused():
    (ended,) = spread(half, [1])
    with pytest.raises(ValueError, match="1 is odd"):
        ended.result()
    first, _ = sorted(spread(half, [1, 2], processes=2))
    (note,) = first.error.__notes__
    assert "in half" in note
    with pytest.raises(ValueError, match="processes=0"):
        next(spread(half, [1], processes=0))
    with pytest.raises(ValueError, match="give one of them"):
        next(spread(half, [1], processes=2, address="auto"))
    with pytest.raises(TypeError, match=r"function: cannot be sent .*lambda"):
        next(spread(lambda n: n, [1], processes=2))
    with pytest.raises(TypeError, match=r"items\[0\]: cannot be sent"):
        next(spread(half, [lambda: 1], processes=2))


def test_what_cannot_travel_is_told_in_words():
    far, lost = sorted(spread(either, [0, 1], processes=2))
    assert isinstance(far.error, RuntimeError)
    assert str(far.error) == "Local: far away"
    assert "pickle" in str(lost.error)


def test_set_up_runs_before_anything_of_the_job_is_loaded():
    import colorsys

    job = functools.partial(what_set_up_saw, colorsys.rgb_to_hls)
    set_up = functools.partial(is_loaded, "colorsys")
    ended = list(spread(job, range(3), processes=2, set_up=set_up))
    assert [e.result() for e in ended] == ["False"] * 3
    with pytest.raises(OSError, match="no room"):
        next(spread(half, [2, 4], processes=2, set_up=refuse))


def test_processes_stay_for_several_calls():
    with Processes(2) as crew:
        for function in (process_of, half, process_of):
            found = [e.result() for e in crew.spread(function, [4])]
            if function is process_of:
                pids = {pid for _, pid in found}
    assert len(pids) == 1
    assert_all_end(list(pids))


def test_a_process_prefers_items_like_its_last_and_then_such_as_no_other_is_at():
    waiting = job_processes._Waiting("aabbbc", near=lambda letter: letter)
    assert waiting.take(None, ()) == (0, "a", "a")
    assert waiting.take(None, ["a"]) == (2, "b", "b")
    assert waiting.take("a", ["b"]) == (1, "a", "a")
    assert waiting.take("b", ["a"]) == (3, "b", "b")
    assert waiting.take("a", ["b"]) == (5, "c", "c")
    assert not waiting.has("c")
    # Nothing but what the other is at: it helps.
    assert waiting.take("c", ["b"]) == (4, "b", "b")
    assert waiting.take("b", ["b"]) is None


def test_items_that_are_near_share_a_process():
    items = [(kind, i) for i in range(3) for kind in "ab"]
    ended = list(spread(process_of, items, processes=2, near=kind))
    found = [e.result() for e in ended]
    assert sorted(item for item, _ in found) == sorted(items)
    assert len({pid for _, pid in found}) <= 2
    (only,) = spread(process_of, items[:1], near=kind)
    assert only.value == (items[0], os.getpid())


UNGUARDED = """
from tff_agg.runtime.spread import spread
print(list(spread(abs, [-1, -2], processes=2)))
"""


def test_a_program_without_a_guard_is_told_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(UNGUARDED))
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert 'must start under if __name__ == "__main__":' in done.stderr
