"""The noise mechanism: a lower-triangular matrix that is never written down.

A mechanism with matrix C turns independent standard normals z into correlated noise
C⁻¹z, one row per round. Adding σ·s·C⁻¹z to the rounds' sums x, where s is the largest
‖C(x − x')‖ that one user can cause, is the Gaussian mechanism with noise multiplier σ
on Cx, followed by a multiplication with C⁻¹: post-processing. The choice of C decides
how the noise adds up over rounds, not how private the run is.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np

from tff_agg import backends, checks, structure
from tff_agg.aliases import Array, Json, JsonObject, Scalar, Structure
from tff_agg.backends import Backend
from tff_agg.noise import generators, seeds
from tff_agg.structure import Form

Draw = Callable[..., Structure]


class State(TypedDict):
    """What a mechanism carries from round to round.

    Attributes:
      buffers: Model-sized structures, where the mechanism needs some.
      round: How many rounds it has made noise for.
      seed: The secret that all draws depend on, as `seeds.seed_in` returns it. A run
        without noise has none.
    """

    buffers: NotRequired[tuple]
    round: Array
    seed: NotRequired[Array]


class Stream(NamedTuple):
    """How a mechanism makes its noise, apart from where its normals come from.

    `start(backend, like)` returns the buffers of round 0 (a tuple, possibly empty).
    `step(backend, buffers, round, draw, like)` returns new buffers and the noise of a
    round; `draw(round, index=0)` gives that round's normals.
    """

    start: Callable[[Backend, Structure], tuple]
    step: Callable[[Backend, tuple, Scalar, Draw, Structure], tuple[tuple, Structure]]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mechanism:
    """Correlated noise of unit scale.

    Attributes:
      name: Names the kind, for example 'blt'.
      stream: The streaming form; `init` and `next` are made from it.
      matrix: `matrix(n)` is the explicit lower-triangular C of n rounds, float64. For
        trees with the Honaker estimator, whose encoder is not square, it is the
        equivalent square factor: C⁻¹ has the very covariance of the noise.
      max_rounds: The most rounds it can serve; None means any number.
      buffers: How many model-sized copies the state holds.
      parameters: What identifies it, as JSON values.
      toeplitz: `toeplitz(n)` is the first column of C where C is Toeplitz, else None.
      bands: How many diagonals of C are not zero, where that is a constant.
      encoder: `encoder(n)` is the (nodes × n) matrix whose noisy image the mechanism
        would reveal at most; C itself where it is None.
      decoder: `decoder(n)` turns the encoder's noise into that of the rounds.
      forest: `forest(n)` describes tree encoders for the exact sensitivity.
      content: Makes what `to_json` returns where name and parameters do not say all.

    Example:
      >>> mechanism = identity()
      >>> state = mechanism.init({'w': np.zeros(3, np.float32)}, seed=(1, 2))
      >>> state, noise = mechanism.next(state, {'w': np.zeros(3, np.float32)})
    """

    name: str
    stream: Stream
    matrix: Callable[[int], np.ndarray]
    max_rounds: int | None = None
    buffers: int = 0
    parameters: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    toeplitz: Callable[[int], np.ndarray] | None = None
    bands: int | None = None
    encoder: Callable[[int], np.ndarray] | None = None
    decoder: Callable[[int], np.ndarray] | None = None
    forest: Callable[[int], tuple] | None = None
    content: Callable[[], JsonObject] | None = None

    def init(self, like: Structure, seed: seeds.Seed) -> State:
        """Returns the state before the first round.

        Args:
          like: A structure whose leaves give shapes, dtypes and the library.
          seed: Secret 64-bit integers: two, or four for noise from AES-256. A
            sequence, an array or a tensor.

        Returns:
          A dict with 'seed', 'round' and, where the mechanism has some, 'buffers';
          shapes and dtypes stay the same for ever.
        """
        backend = check_like(like)
        state: State = {
            "round": backend.constant(0, np.int64),
            "seed": seeds.seed_in(backend, seed),
        }
        if self.buffers:
            # Keys in alphabetical order: every library then agrees on their order.
            state = {"buffers": self.stream.start(backend, like), **state}
        return state

    def next(self, state: State, like: Form) -> tuple[State, Form]:
        """Returns the next state and this round's noise, a row of C⁻¹z.

        Pure and traceable: the round may be a tensor of a graph. A `like` of other
        shapes than the buffers in the state is refused.
        """
        backend = check_like(like)
        if backend.name == "tf":
            # AutoGraph has nothing to convert here and would warn about lambdas.
            autograph = sys.modules["tensorflow"].autograph.experimental
            return autograph.do_not_convert(self._next)(backend, state, like)
        return self._next(backend, state, like)

    def _next(self, backend: Backend, state: State, like: Structure):
        """Does the work of `next` in a library."""
        seed = seeds.seed_in(backend, state["seed"])
        round = backend.constant(state["round"], np.int64)
        if self.max_rounds is not None:
            inside = round < self.max_rounds
            message = (
                f"{self.name} was built for {self.max_rounds} rounds and was asked for "
                "one more"
            )
            round = backend.check(inside, round, message)

        def draw(at: Scalar, index: Scalar = 0) -> Structure:
            return generators.normals(backend, seed, at, like, index)

        buffers = state.get("buffers", ())
        for buffer in buffers:
            structure.check_alike(like, buffer, "like", "the state was made for")
        buffers, noise = self.stream.step(backend, buffers, round, draw, like)
        if self.max_rounds is not None and not backend.raises:
            noise = backend.check(inside, noise, message)
        after: State = {"round": backend.constant(round + 1, np.int64), "seed": seed}
        if self.buffers:
            after = {"buffers": buffers, **after}
        return after, noise

    def check_rounds(self, n: int) -> int:
        """Returns `n`, refusing what the mechanism cannot serve."""
        n = checks.whole("rounds", n)
        if self.max_rounds is not None and n > self.max_rounds:
            raise ValueError(
                f"{self.name} was built for {self.max_rounds} rounds, {n} are asked "
                f"for; build it with rounds={n} or restart it in between"
            )
        return n

    def fingerprint(self, rounds: int) -> list[float]:
        """Returns eight numbers that tell C of so many rounds from any other.

        A tree's decoder stands for its C.

        Example:
          >>> identity().fingerprint(1) == tree().fingerprint(1)
          True
        """
        n = self.check_rounds(rounds)
        matrix = (self.decoder or self.matrix)(n)
        return fingerprint(matrix)

    def to_json(self) -> JsonObject:
        """Returns all that `noise.from_json` needs, as JSON values.

        Those of a dense mechanism hold its whole matrix.

        Example:
          >>> identity().to_json()
          {'mechanism': 'identity'}
        """
        if self.content is not None:
            return self.content()
        return {"mechanism": self.name, **self.parameters}

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v}" for k, v in self.parameters.items())
        return f"{self.name}({inside})" if len(inside) < 200 else f"{self.name}(…)"


def fingerprint(matrix: np.ndarray) -> list[float]:
    """Returns eight numbers uᵀMv that tell a matrix from any other.

    u and v are fixed weights between 1 and 2. Optimised coefficients differ in their
    last digits from machine to machine: unlike a digest, numbers can be compared with
    a tolerance.

    Example:
      >>> fingerprint(np.eye(2)) == fingerprint(np.ones((2, 2)))
      False
    """
    left, right = (_weights(size) for size in matrix.shape)
    return [float(u @ matrix @ v) for u, v in zip(left, right[::-1], strict=True)]


def _weights(n: int) -> np.ndarray:
    """Returns eight rows of n fixed numbers between 1 and 2, all of them different."""
    roots = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19])
    return 1 + np.outer(roots, np.arange(1, n + 1)) % 1


def check_like(like: Structure) -> Backend:
    """Returns the library of `like`; refuses no leaves and leaves not of reals."""
    backend, flat = backends.of(like), structure.leaves(like)
    most = generators.MAX_LEAVES - generators.RESERVED_LEAVES
    if not flat or len(flat) > most:
        raise ValueError(f"like must have 1 to {most} leaves: {len(flat)}")
    for i, leaf in enumerate(flat):
        if not structure.is_floating(leaf):
            raise TypeError(
                f"noise needs floating-point leaves; leaf {i} of like has dtype "
                f"{structure.dtype_of(leaf)}"
            )
    return backend


def identity() -> Mechanism:
    """Independent noise every round: C is the identity matrix.

    Example:
      >>> identity().matrix(2)
      array([[1., 0.],
             [0., 1.]])
    """

    def column(n: int) -> np.ndarray:
        return np.eye(1, n)[0]

    return Mechanism(
        name="identity",
        stream=Stream(
            start=lambda backend, like: (),
            step=lambda backend, buffers, round, draw, like: ((), draw(round)),
        ),
        matrix=np.eye,
        toeplitz=column,
        bands=1,
    )
