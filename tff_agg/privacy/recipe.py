"""The recipe of a private run: from plain settings to mechanism, schema and plan.

`tff-agg account` and training make their flags from the fields of one class,
`PrivacyRecipe`, and their plans by its methods. What the one prints is what the other
does.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tff_agg import checks, fields, noise
from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
)
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.releases import Release


class Stretch(NamedTuple):
    """The rounds between two restarts of a mechanism: all, if it is not restarted.

    Attributes:
      rounds: How many.
      separation: The least distance of two rounds of one user among them.
      participations: The most rounds of one user among them. A user may spend all its
        participations in one stretch, as far as they fit: that is the worst case.
    """

    rounds: int
    separation: int
    participations: int


class Schema(NamedTuple):
    """How a recipe becomes a participation schema.

    Attributes:
      build: Makes the schema from a recipe.
      needs: The field that the schema cannot do without. If it is given, it also
        chooses the schema.
      takes: A field that may be given as well.
    """

    build: Callable[["PrivacyRecipe"], Participation]
    needs: str | None = None
    takes: str | None = None


MechanismBuilder = Callable[["PrivacyRecipe", Stretch], noise.Mechanism]

MECHANISMS: Mapping[str, MechanismBuilder] = {
    "identity": lambda recipe, stretch: noise.identity(),
    "tree": lambda recipe, stretch: noise.tree(
        "plain", stretch.rounds if recipe.completion else None, recipe.completion
    ),
    "honaker": lambda recipe, stretch: noise.tree(
        "honaker", stretch.rounds, recipe.completion
    ),
    "banded": lambda recipe, stretch: noise.banded(
        stretch.rounds, min(recipe.bands, stretch.rounds), **_fitted(recipe, stretch)
    ),
    "square_root": lambda recipe, stretch: noise.banded_square_root(
        min(recipe.bands, stretch.rounds), _workload(recipe)
    ),
    "blt": lambda recipe, stretch: noise.blt(
        stretch.rounds, recipe.buffers, **_fitted(recipe, stretch)
    ),
    "dense": lambda recipe, stretch: noise.dense(
        stretch.rounds,
        workload=_workload(recipe),
        cache=recipe.noise_cache,
    ),
}

PARTICIPATIONS: Mapping[str, Schema] = {
    "at_most_once": Schema(lambda recipe: AtMostOnce()),
    "min_separation": Schema(
        lambda recipe: MinSeparation(
            _given(recipe.min_separation), recipe.max_participations
        ),
        needs="min_separation",
        takes="max_participations",
    ),
    "fixed_epoch_order": Schema(
        lambda recipe: FixedEpochOrder(
            _given(recipe.epoch_length), recipe.max_participations
        ),
        needs="epoch_length",
        takes="max_participations",
    ),
}

# How much noise: exactly one of these fields is given.
NOISES: Mapping[str, Callable[..., Plan]] = {
    "noise_multiplier": lambda value, **rest: Plan(noise_multiplier=value, **rest),
    "per_node_multiplier": Plan.from_per_node_multiplier,
    "epsilon": Plan.for_epsilon,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyRecipe:
    """Everything that a run's privacy plan follows from, as plain values.

    The meaning of each field is its description, which is also the help of its flag.
    The participation schema may be left out: `min_separation` and `epoch_length` each
    belong to one schema and choose it; without them a user takes part once at most.

    Example:
      >>> recipe = PrivacyRecipe(noise_multiplier=0.341, mechanism='blt')
      >>> round(recipe.build_plan().rho, 2)
      4.3
    """

    rounds: int = fields.described(1000, "training rounds", at_least=1)
    clients_per_round: int = fields.described(100, "clients in each round", at_least=1)
    server_momentum: float = fields.described(
        0.0, "momentum of the server, 0 for none; optimised mechanisms are made for it"
    )
    clip_norm: float = fields.described(
        0.3, "L2 norm that a client's update is clipped to"
    )
    noise_multiplier: float | None = fields.described(
        None, "noise relative to clip norm times the mechanism's whole sensitivity"
    )
    per_node_multiplier: float | None = fields.described(
        None,
        "instead of the noise multiplier, for trees: TF-Privacy's noise multiplier, "
        "the noise of one node relative to the clip norm",
    )
    epsilon: float | None = fields.described(
        None, "instead of the noise multiplier: find the one that gives this ε"
    )
    delta: float = fields.described(1e-6, "δ of the guarantee")
    mechanism: str = fields.described("blt", "correlation of the noise", MECHANISMS)
    restart_every: int | None = fields.described(
        None, "rounds after which the mechanism restarts; not given: never", at_least=1
    )
    completion: bool = fields.described(
        False, "tree, honaker: complete the tree at its end"
    )
    bands: int = fields.described(
        8, "banded, square_root: how many bands", at_least=1,
        only_with=("mechanism", ("banded", "square_root")),
    )  # fmt: skip
    buffers: int = fields.described(
        3, "blt: how many buffers", at_least=1, only_with=("mechanism", ("blt",))
    )
    noise_cache: str | None = fields.described(
        None, "folder where optimised mechanisms are kept", role="place"
    )
    participation: str | None = fields.described(
        None,
        "in which rounds a user may take part; not given: min_separation or "
        "fixed_epoch_order if the flag it needs is given, else at_most_once",
        PARTICIPATIONS,
    )
    min_separation: int | None = fields.described(
        None,
        "min_separation: least difference of the numbers of two rounds of a user",
        at_least=1,
    )
    epoch_length: int | None = fields.described(
        None, "fixed_epoch_order: rounds in an epoch", at_least=1
    )
    max_participations: int | None = fields.described(
        None,
        "min_separation, fixed_epoch_order: most rounds of a user; not given: what "
        "fits",
        at_least=1,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        checks.delta(self.delta)
        checks.number("server_momentum", self.server_momentum, "[0, 1)")
        given = [name for name in NOISES if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(f"{name}={getattr(self, name)!r}" for name in given)
            raise ValueError(
                f"give exactly one of {', '.join(NOISES)} (noise_multiplier=0 is no "
                f"privacy); got {found or 'none'}"
            )
        if self.completion and self.mechanism not in _TREES:
            raise ValueError(
                f"completion needs mechanism={' or '.join(_TREES)}; got "
                f"{self.mechanism!r}"
            )
        self._check_schema()

    def _check_schema(self) -> None:
        """Refuses fields that belong to another schema, or that are missing."""
        name = self.schema_name
        schema = PARTICIPATIONS[name]
        if schema.needs and getattr(self, schema.needs) is None:
            raise ValueError(f"participation={name} needs {schema.needs}")
        for field in ("min_separation", "epoch_length", "max_participations"):
            value = getattr(self, field)
            if value is None or field in (schema.needs, schema.takes):
                continue
            owners = [
                other
                for other, found in PARTICIPATIONS.items()
                if field in (found.needs, found.takes)
            ]
            raise ValueError(
                f"{field}={value} needs participation={' or '.join(owners)}; it is "
                f"{name}"
            )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        found = fields.without_effect(self, given)
        if "bands" in given and not found and self.bands > (n := self.stretch.rounds):
            found.append(f"bands={self.bands}: there are only {n} rounds to correlate")
        return found

    @property
    def schema_name(self) -> str:
        """The participation schema, as given or as the fields choose it."""
        if self.participation is not None:
            return self.participation
        for name, schema in PARTICIPATIONS.items():
            if schema.needs and getattr(self, schema.needs) is not None:
                return name
        return "at_most_once"

    @property
    def stretch(self) -> Stretch:
        """The rounds between two restarts, for which a mechanism is made."""
        schema = self.build_participation()
        # Refuses what does not fit; cutting the schema would hide it.
        schema.largest(self.rounds)
        rounds = min(self.restart_every or self.rounds, self.rounds)
        inside = schema.cut(rounds)
        return Stretch(rounds, inside.spacing(rounds), inside.largest(rounds))

    def build_participation(self) -> Participation:
        """Returns the participation schema that sampler and accountant share."""
        return PARTICIPATIONS[self.schema_name].build(self)

    def build_mechanism(self) -> noise.Mechanism:
        """Returns the mechanism that correlates the noise, restarts included."""
        stretch = self.stretch
        made = MECHANISMS[self.mechanism](self, stretch)
        if stretch.rounds == self.rounds:
            return made
        return noise.restart_every(made, stretch.rounds)

    @property
    def noise_seed_is_known(self) -> bool:
        """Whether anybody could subtract the noise; a run may have such a seed."""
        return False

    def build_plan(self, releases: Sequence[Release] = (), **more: Any) -> Plan:
        """Returns the privacy plan; finds the noise where ε was given.

        Args:
          releases: What was released about the users before training, such as a
            vocabulary.
          **more: Further arguments of `Plan` that no setting decides, such as claims.
        """
        name = next(name for name in NOISES if getattr(self, name) is not None)
        return NOISES[name](
            getattr(self, name),
            clip_norm=self.clip_norm,
            cohort_size=self.clients_per_round,
            rounds=self.rounds,
            mechanism=self.build_mechanism(),
            participation=self.build_participation(),
            delta=self.delta,
            releases=tuple(releases),
            noise_seed_is_known=self.noise_seed_is_known,
            **more,
        )


_TREES = ("tree", "honaker")


def _fitted(recipe: PrivacyRecipe, stretch: Stretch) -> dict[str, Any]:
    """Returns what an optimised mechanism is optimised for."""
    return {
        "separation": stretch.separation,
        "participations": stretch.participations,
        "workload": _workload(recipe),
        "cache": recipe.noise_cache,
    }


def _workload(recipe: PrivacyRecipe) -> noise.Workload:
    """Returns what the server does with the rounds' sums."""
    return noise.workloads.momentum(recipe.server_momentum)


def _given(value: int | None) -> int:
    """Returns a value that the recipe's check has found to be there."""
    assert value is not None
    return value
