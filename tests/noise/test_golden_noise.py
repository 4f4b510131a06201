"""The noise has the very bits that it had when `golden_noise` recorded them.

The last bit of a logarithm or a cosine depends on the processor. So bits are compared
on the kind of processor that they were recorded on; elsewhere numbers are, to 1e-6.
"""

import json

import numpy as np
import pytest

from tests.noise import golden_noise

GOLDEN = json.loads(golden_noise.PATH.read_text())
SAME_PROCESSOR = GOLDEN["processor"] == golden_noise.processor()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), golden_noise.CASES)
def test_bits_of_the_noise(name, way):
    found, golden = golden_noise.drawn(name, way), GOLDEN["drawn"][f"{name}, {way}"]
    assert set(golden) == set(golden_noise.seeds_of(way))
    for seed in golden:
        np.testing.assert_allclose(
            found[seed]["sample"], golden[seed]["sample"], rtol=1e-6, atol=1e-6
        )
        if SAME_PROCESSOR:
            assert found[seed]["sha256"] == golden[seed]["sha256"]


def test_graphs_of_tensorflow_have_the_bits_of_eager_mode():
    """There `a == b` compares Python objects, silently.

    A mechanism that used it would add noise that is not correlated.
    """
    for name in golden_noise.SELDOM["tensorflow"]:
        eager, graph = (
            GOLDEN["drawn"][f"{name}, {way}"]["large"]
            for way in ("tensorflow", "tensorflow 1 graph")
        )
        assert graph == eager


def test_coefficients():
    found, tolerance = golden_noise.coefficients(), 1e-12 if SAME_PROCESSOR else 1e-6
    for name, golden in GOLDEN["coefficients"].items():
        np.testing.assert_allclose(found[name], golden, rtol=tolerance, err_msg=name)
