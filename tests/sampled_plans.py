"""Plans of DP-SGD in few words."""

from typing import Any

from tff_agg import noise, privacy


def sampled_plan(
    batch_size: int, population_size: int, steps: int, **rest: Any
) -> privacy.Plan:
    """Returns the plan of so many steps on batches drawn from a population."""
    drawn = privacy.PoissonSampling.of(batch_size, population_size)
    return privacy.Plan(
        cohort_size=batch_size,
        rounds=steps,
        mechanism=noise.identity(),
        **({"participation": drawn} | rest),
    )
