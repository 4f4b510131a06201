"""Prints how far the normals are from perfect ones, in figures.

Normals that are bounded put a floor under δ, whatever ε: what a user adds can carry
the noise to where it never comes by itself. The floor is computed for a user whose
whole update lies in one coordinate and who takes part once, for an observer who sees
both members of a pair. The second table tells the relative error of the density.

    python -m benchmarks.normals --noise_multiplier=0.341 --rounds=2000
"""

import dataclasses
import math

import numpy as np
import scipy.integrate
import scipy.optimize
import scipy.stats

from benchmarks import programs
from tff_agg import noise
from tff_agg.fields import described
from tff_agg.noise import normals


@dataclasses.dataclass(frozen=True)
class Options:
    """Of which plan."""

    noise_multiplier: float = described(0.341, "σ of the plan")
    rounds: int = described(2000, "rounds of the run", at_least=1)
    out: str = described("results/normals", "folder for the JSON")


# The uniforms of TensorFlow's own normals are at least 1e-7.
TENSORFLOW_BOUND = math.sqrt(-2 * math.log(1e-7))
SIGMAS = (1, 3, 5, 8, 11)


def shifts(mechanism: noise.Mechanism, rounds: int, multiplier: float) -> np.ndarray:
    """Returns by how much one update moves each normal, in the worst round."""
    columns = (mechanism.encoder or mechanism.matrix)(rounds)
    norms = np.linalg.norm(columns, axis=0)
    worst = columns[:, norms.argmax()] / norms.max()
    return np.abs(worst[worst != 0]) / multiplier


def delta_floor(bound: float, moved: np.ndarray) -> float:
    """Returns the probability that some pair is carried over `bound`.

    Args:
      bound: The longest pair that the generator makes.
      moved: By how much one member of each pair is moved.
    """
    beyond = scipy.stats.ncx2.sf(bound**2, 2, moved**2) - math.exp(-(bound**2) / 2)
    return float(-np.expm1(np.log1p(-np.maximum(beyond, 0)).sum()))


def first_coarse_radius() -> float:
    """Returns from where on pairs of float32 are farther apart than their rounding.

    The uniform u comes in steps of 2**-96, hence the radius in relative steps of
    2**-96 / (u · r²); float32 rounds to 2**-24.
    """

    def excess(r: float) -> float:
        return 2 * math.log(r) - r**2 / 2 + 72 * math.log(2)

    return scipy.optimize.brentq(excess, 5, 15)


def density_error(sigma: float) -> float:
    """Returns the relative error of the density of `from_words` at `sigma`."""
    mean = 1 + normals.TURN**2 / 3

    def excess(t: float) -> float:
        scale = (1 + t**2) / mean
        return math.expm1(-(sigma**2) / 2 * (1 / scale - 1) - math.log(scale) / 2)

    return scipy.integrate.quad(excess, 0, normals.TURN)[0] / normals.TURN


def density_error_in_single(sigma: float) -> float:
    """Returns the relative error of the density of `from_short_words` at `sigma`."""

    def excess(part: float) -> float:
        scale = 1 + part
        return math.expm1(-(sigma**2) / 2 * (scale**-2 - 1) - math.log(scale))

    total = scipy.integrate.quad(excess, -normals.BLUR, normals.BLUR, epsabs=0)[0]
    return total / (2 * normals.BLUR)


def measure(rounds: int, multiplier: float) -> dict:
    mechanisms = {
        "identity": noise.identity(),
        "tree": noise.tree(),
        "blt, 3 buffers": noise.blt(rounds, 3),
    }
    bounds = {
        "TensorFlow's normals": TENSORFLOW_BOUND,
        "first coarse radius": first_coarse_radius(),
        "these normals": normals.BOUND,
    }
    return {
        "rounds": rounds,
        "noise_multiplier": multiplier,
        "bounds": bounds,
        "delta_floors": {
            name: {
                of: delta_floor(bound, shifts(mechanism, rounds, multiplier))
                for of, bound in bounds.items()
            }
            for name, mechanism in mechanisms.items()
        },
        "density_errors": {
            str(sigma): {
                "double": density_error(sigma),
                "single": density_error_in_single(sigma),
            }
            for sigma in SIGMAS
        },
    }


def main(options: Options) -> None:
    """Computes, prints and writes."""
    found = measure(options.rounds, options.noise_multiplier)
    bounds = found["bounds"]
    floors = [{"name": name, "of": of} for name, of in found["delta_floors"].items()]
    programs.tell(
        " | ".join(["", *(f"{name}, {bound:.3f}" for name, bound in bounds.items())]),
        " | ".join(["{name}", *(f"{{of[{name}]:.1e}}" for name in bounds)]),
        floors,
        f"Floor of δ by the bound: {options.rounds} rounds, noise multiplier "
        f"{options.noise_multiplier}",
    )
    programs.tell(
        "standard deviations | numpy, TensorFlow | JAX, float32",
        "{sigma} | {double:.1e} | {single:.1e}",
        [{"sigma": sigma, **of} for sigma, of in found["density_errors"].items()],
        "Relative error of the density",
    )
    programs.write(options.out, "normals", found)


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
