"""The benchmarks of the noise run and write what they print, on small sizes."""

import json
import subprocess
import sys


def run(name, tmp_path, *arguments):
    """Runs a benchmark as a program and returns its output and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", f"--out={tmp_path}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, json.loads((tmp_path / f"{name}.json").read_text())


def test_mechanisms_compares_all_under_both_schemas(tmp_path):
    small = ("--rounds=16", "--separation=6", "--max_participations=3")
    out, result = run("mechanisms", tmp_path, *small)
    found = result["schemas"]
    assert set(found) == {"one participation", "at least 6 apart, 3 times"}
    for rows in found.values():
        by_name = {row["mechanism"]: row for row in rows}
        assert by_name["blt, 2 buffers"]["model_copies"] == 2
        best = by_name["blt, 3 buffers"]["rmse_prefix_sum"]
        assert best < by_name["tree, plain"]["rmse_prefix_sum"]
        assert best < by_name["identity"]["rmse_prefix_sum"]
    assert (tmp_path / "mechanisms.png").stat().st_size > 1000
    assert "tree, Honaker" in out


def test_noise_step_times_ours_and_tf_privacys(tmp_path):
    out, result = run("noise_step", tmp_path, "--parameters=100", "--rounds=2")
    rows = {row["mechanism"]: row for row in result["rows"]}
    assert {"blt, 3 buffers", "TF-Privacy tree (efficient)"} <= set(rows)
    assert all(row["milliseconds_mean"] > 0 for row in rows.values())
    assert "banded, 8 bands" in out
