"""Progress on the terminal: how far each stage of a piece of work is."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tqdm

# From here on a bar counts in thousands, 861k of 1.06M; fewer are whole numbers.
_MANY = 10_000


def open_bar(stage: str, total: int | None, **options: object) -> "tqdm.tqdm":
    """Opens a tqdm bar; a total of zero or None is one that is not known."""
    import tqdm

    return tqdm.tqdm(
        desc=stage, total=total or None, mininterval=0.5, dynamic_ncols=True, **options
    )


class StageBar:
    """A bar for the current stage, moved on by calls with (stage, done, total).

    Example:
      >>> with contextlib.closing(StageBar()) as bar:
      ...   bar('read', 1, 10)
      ...   bar('write', 1, 10)
    """

    def __init__(self) -> None:
        self._stage: tuple[str, int] | None = None
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Moves the bar on; a new one where a stage begins, or begins again."""
        if (stage, total) != self._stage or done < self._bar.n:
            self.close()
            self._stage = (stage, total)
            # What was done before says nothing of the pace.
            self._bar = open_bar(
                stage, total, unit_scale=not 0 < total < _MANY, initial=done
            )
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leaves the bar as it stands; what is printed next begins below it."""
        if self._bar is not None:
            self._bar.close()
