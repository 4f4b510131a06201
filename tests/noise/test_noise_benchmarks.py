"""The benchmarks of the noise run and write what they print, on small sizes."""

import json
import subprocess
import sys

import numpy as np

from tests import forked


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
    program = (
        "import runpy; runpy.run_module('benchmarks.noise_step', None, '__main__')"
    )
    flags = [f"--out={tmp_path}", "--parameters=100", "--rounds=2"]
    done = forked.run(program, *flags)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "retracing" not in done.stderr
    out = done.stdout
    result = json.loads((tmp_path / "noise_step.json").read_text())
    rows = {row["mechanism"]: row for row in result["rows"]}
    assert {"blt, 3 buffers", "TF-Privacy tree (efficient)"} <= set(rows)
    assert all(row["milliseconds_mean"] > 0 for row in rows.values())
    assert "banded, 8 bands" in out


def test_normals_gives_the_floor_of_delta_and_the_error_of_the_density(tmp_path):
    from scipy import integrate, stats

    from benchmarks import normals

    out, result = run("normals", tmp_path, "--rounds=64")
    assert "blt, 3 buffers" in out
    for name, least in (("identity", 3e-3), ("tree", 5e-6), ("blt, 3 buffers", 2e-5)):
        floors = result["delta_floors"][name]
        # What TensorFlow's bound costs even who looks at single coordinates.
        assert least < floors["TensorFlow's normals"] < 20 * least
        assert floors["these normals"] < 1e-15
        assert floors["these normals"] < floors["first coarse radius"] < 1e-13
    # One normal moved by two: the plane outside of a circle, by another route.
    bound, moved = 3.0, 2.0

    def outside(y):
        edge = (bound**2 - y**2) ** 0.5
        return stats.norm.pdf(y) * (
            stats.norm.sf(edge - moved) + stats.norm.sf(edge + moved)
        )

    inside = 2 * stats.norm.sf(bound) + integrate.quad(outside, -bound, bound)[0]
    by_itself = stats.chi2.sf(bound**2, 2)
    floor = normals.delta_floor(bound, np.array([moved]))
    np.testing.assert_allclose(floor, inside - by_itself, rtol=1e-6)
    # An error of a density adds up to nothing.
    for error in (normals.density_error, normals.density_error_in_single):
        assert abs(stats.norm.expect(error, lb=-9, ub=9)) < 1e-9 < error(5)
