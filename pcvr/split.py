"""The split by time: train on what came first, judge on what came after."""

import numpy as np

SPLITS = ("train", "heldout", "test")


def by_time(
    times: np.ndarray, train_share: float, heldout_share: float
) -> dict[str, slice]:
    """Cuts clicks in the order of time into train, heldout and test.

    The first `train_share` of all clicks are for training, the next `heldout_share`
    are held out, the rest is for the test. A cut that would fall among clicks of one
    time moves to before them: no split has a click of the time of another.

    Args:
      times: [n], rising.
      train_share: Between 0 and 1.
      heldout_share: Between 0 and 1; something is left for the test.

    Example:
      >>> by_time(np.array([1, 2, 3, 3, 3, 4]), 0.5, 0.4)['heldout']
      slice(2, 5, None)
    """
    if not (train_share > 0 and heldout_share > 0 and train_share + heldout_share < 1):
        raise ValueError(
            f"train_share={train_share} and heldout_share={heldout_share} must be "
            "above 0 and leave something for the test"
        )
    cuts = [0]
    for share in (train_share, train_share + heldout_share):
        cuts.append(int(np.searchsorted(times, times[int(share * len(times))])))
    cuts.append(len(times))
    slices = {name: slice(cuts[i], cuts[i + 1]) for i, name in enumerate(SPLITS)}
    if empty := [name for name, cut in slices.items() if cut.start == cut.stop]:
        raise ValueError(
            f"the {len(times)} clicks have too few different times: by time, nothing "
            f"is left for {', '.join(empty)}"
        )
    return slices
