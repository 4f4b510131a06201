"""Which checkpoints stay: the last ones, every n-th, or all."""

import dataclasses
from collections.abc import Mapping, Sequence

from tff_agg import checks

Policy = int | Mapping[str, int] | None


@dataclasses.dataclass(frozen=True)
class Retention:
    """What to keep of each name.

    Attributes:
      keep_last: How many of the newest rounds stay: one number for all names, or one
        for each name. A name without any policy keeps all its rounds.
      keep_every: Rounds divisible by this stay too; where only this is given, so does
        the newest round.

    Example:
      >>> Retention(keep_last=2, keep_every=5).dropped('x', [0, 1, 4, 5, 6, 7])
      [1, 4]
    """

    keep_last: Policy = None
    keep_every: Policy = None

    def __post_init__(self):
        for argument in ("keep_last", "keep_every"):
            policy = getattr(self, argument)
            given = policy if isinstance(policy, Mapping) else {"": policy}
            for name, number in given.items():
                if number is not None:
                    checks.whole(f"{argument}[{name!r}]" if name else argument, number)

    def dropped(self, name: str, rounds: Sequence[int]) -> list[int]:
        """Returns those of a name's (sorted) rounds that need not stay."""
        last, every = _of(self.keep_last, name), _of(self.keep_every, name)
        if last is None and every is None:
            return []
        old = rounds[: -(last or 1)]
        return [number for number in old if not (every and number % every == 0)]


def _of(policy: Policy, name: str) -> int | None:
    return policy.get(name) if isinstance(policy, Mapping) else policy
