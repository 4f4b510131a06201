"""The grids that the paper searches, as given in its section on hyperparameters."""

import dataclasses

KS = (2, 3, 5, *range(10, 201, 10))
TRAINING_BETAS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999, 0.9999)
INFERENCE_BETAS = (0.85, 0.9, 0.95, 0.99, 0.999, 0.9999)


@dataclasses.dataclass(frozen=True)
class Grids:
    """What is searched for a task; the defaults are StackOverflow's.

    Attributes:
      ks: k of UTA, in training and at inference, and of OPA and OMV.
      training_betas: β of EMA_tr.
      inference_betas: β of EMA_inf.
      starts: τ, the first step that uses the aggregate.

    Example:
      >>> Grids(ks=(3, 5)).starts
      (0,)
    """

    ks: tuple[int, ...] = KS
    training_betas: tuple[float, ...] = TRAINING_BETAS
    inference_betas: tuple[float, ...] = INFERENCE_BETAS
    starts: tuple[int, ...] = (0,)
