"""What every mechanism promises, for every mechanism and every library."""

import json
import sys

import numpy as np
import pytest
import scipy.stats

from tff_agg import averaging, backends, noise, structure
from tff_agg.noise import generators, seeds

N = 12
SEED = (0x0123456789ABCDEF, -42)

MECHANISMS = {
    "identity": noise.identity(),
    "tree": noise.tree(),
    "tree completed": noise.tree(rounds=N - 1, completion=True),
    "honaker": noise.tree("honaker", N),
    "honaker completed": noise.tree("honaker", N - 1, completion=True),
    "tree restarted": noise.restart_every(noise.tree(), 5),
    "honaker restarted": noise.restart_every(noise.tree("honaker", 5, True), 5),
    "banded": noise.banded_from([2.0, 0.7, 0.3, -0.2]),
    "square root": noise.banded_square_root(5, noise.workloads.momentum(0.9)),
    "optimised banded": noise.banded(N, 4, separation=4, participations=2),
    "blt": noise.blt(N, 2),
    "blt restarted": noise.restart_every(noise.blt_from((0.9, 0.4), (0.3, 0.2)), 4),
    "dense": noise.dense(N),
    "dense momentum": noise.dense(N, workload=noise.workloads.momentum(0.9)),
}
EVERY = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
# Those that differ in the operators of their streams: others differ in numbers.
OF_EACH_KIND = pytest.mark.parametrize(
    "name",
    ["identity", "tree completed", "honaker completed", "honaker restarted",
     "banded", "blt restarted", "dense"],
)  # fmt: skip


def rounds_of(mechanism) -> int:
    return min(N, mechanism.max_rounds or N)


def stream(mechanism, like, rounds=None, seed=SEED, step=None):
    """Returns the noise of all rounds, as numpy."""
    state = mechanism.init(like, seed)
    step = step or mechanism.next
    out = []
    for _ in range(rounds or rounds_of(mechanism)):
        state, drawn = step(state, like)
        out.append(structure.map_leaves(np.asarray, drawn))
    return out


def explicit(mechanism, like, backend="numpy"):
    """Multiplies C⁻¹ (or the trees' decoder) with the very normals of the stream."""
    n = rounds_of(mechanism)
    plain = np.stack(stream(noise.identity(), like, n))
    return np.linalg.solve(mechanism.matrix(n), plain.reshape(n, -1))


def is_square(mechanism) -> bool:
    """Returns whether one normal a round makes the noise (no extra tree nodes)."""
    return mechanism.decoder is None


@EVERY
def test_streaming_equals_the_explicit_product(mechanism):
    like = np.zeros((3, 5))
    n = rounds_of(mechanism)
    got = np.stack(stream(mechanism, like)).reshape(n, -1)
    if is_square(mechanism):
        np.testing.assert_allclose(got, explicit(mechanism, like), atol=1e-12)
        return
    # Honaker trees: noise is linear in the nodes' normals. Their covariance decides.
    decoder, encoder = mechanism.decoder(n), mechanism.encoder(n)
    np.testing.assert_allclose(decoder @ encoder, np.eye(n), atol=1e-12)
    inverse = np.linalg.inv(mechanism.matrix(n))
    np.testing.assert_allclose(inverse @ inverse.T, decoder @ decoder.T, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("completion", [False, True])
def test_honaker_streams_its_decoder(n, completion):
    """Node by node: replaces each normal in turn by a one and reads the noise."""
    mechanism = noise.tree("honaker", n, completion)
    from tff_agg.noise import forest

    spans = list(forest.intervals(mechanism.forest(n)))
    low_bits = [h for h in range(n.bit_length()) if (n - 1) >> h & 1]

    def index_of(first, end):
        """The draw's index: the level at which the node was made."""
        size = end - first
        if end == n and completion and n & (n - 1):
            sizes = [1]
            for h in low_bits:
                sizes.append(sizes[-1] + 2**h)
            at = sizes.index(size)
            return 0 if at == 0 else low_bits[at - 1] + 1
        return size.bit_length() - 1

    rows = np.zeros((n, len(spans)))
    for column, (first, end) in enumerate(spans):
        node = (end - 1, index_of(first, end))

        def draw(position, index=0, want=node):
            return np.array(float((int(position), int(index)) == want))

        buffers = mechanism.stream.start(backends.NUMPY, np.array(0.0))
        for t in range(n):
            buffers, rows[t, column] = mechanism.stream.step(
                backends.NUMPY, buffers, np.int64(t), draw, np.array(0.0)
            )
    np.testing.assert_allclose(rows, mechanism.decoder(n), atol=1e-12)


@EVERY
def test_fingerprint_is_of_the_whole_matrix(mechanism):
    n = rounds_of(mechanism)
    found = mechanism.fingerprint(n)
    assert len(found) == 8 and all(type(value) is float for value in found)
    assert mechanism.fingerprint(n) == found
    c = mechanism.matrix(n)
    same = noise.dense_from(c).fingerprint(n)
    if mechanism.decoder is None:
        np.testing.assert_allclose(same, found, rtol=1e-12)
    for row in range(n):
        other = c.copy()
        other[row, row // 2] += 1e-4
        moved = noise.dense_from(other).fingerprint(n)
        assert not np.isclose(moved, same, rtol=1e-9).any()


@EVERY
def test_empirical_covariance(mechanism):
    n, samples = rounds_of(mechanism), 60_000
    drawn = np.stack(stream(mechanism, np.zeros(samples)))
    inverse = np.linalg.inv(mechanism.matrix(n))
    expected = inverse @ inverse.T
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # Five standard errors of a covariance's estimate.
    assert np.abs(drawn @ drawn.T / samples - expected).max() < 5 * (
        scale.max() * np.sqrt(2 / samples)
    )


@EVERY
def test_kolmogorov_smirnov_accepts_sigma_and_rejects_others(mechanism):
    n = rounds_of(mechanism)
    inverse = np.linalg.inv(mechanism.matrix(n))
    drawn = stream(mechanism, np.zeros(20_000))
    for t in (0, n // 2, n - 1):
        sigma = np.linalg.norm(inverse[t])

        def p_value(scale, t=t):
            return scipy.stats.kstest(drawn[t] / scale, "norm").pvalue

        assert p_value(sigma) > 1e-4
        assert p_value(0.8 * sigma) < 1e-6
        assert p_value(1.25 * sigma) < 1e-6


@EVERY
def test_same_seed_same_bits_other_seed_other_noise(mechanism):
    like = {"a": np.zeros(50, np.float32), "b": (np.zeros((), np.float64),)}
    once, again = stream(mechanism, like), stream(mechanism, like)
    other = stream(mechanism, like, seed=(SEED[0], SEED[1] + 1))
    for one, two, three in zip(once, again, other, strict=True):
        assert one["a"].dtype == np.float32 and one["b"][0].shape == ()
        assert one["b"][0].dtype == np.float64
        np.testing.assert_array_equal(one["a"], two["a"])
        assert one["b"][0] == two["b"][0]
        assert not np.array_equal(one["a"], three["a"])


@EVERY
def test_resuming_continues_the_same_noise(mechanism):
    like = np.zeros(7)
    whole = stream(mechanism, like)
    state = mechanism.init(like, SEED)
    for t in range(rounds_of(mechanism)):
        # What a checkpoint holds: plain copies of the leaves.
        state = structure.map_leaves(lambda x: np.array(x, copy=True), state)
        state, drawn = mechanism.next(state, like)
        np.testing.assert_array_equal(drawn, whole[t])


@EVERY
def test_state_keeps_its_form_and_holds_the_buffers_it_claims(mechanism):
    like = {"w": np.zeros((4, 2), np.float32), "b": np.zeros(3, np.float32)}
    state = mechanism.init(like, SEED)
    form = structure.map_leaves(lambda x: (x.shape, str(x.dtype)), state)
    size = sum(leaf.size for leaf in structure.leaves(state.get("buffers", ())))
    assert size == mechanism.buffers * 11
    for _ in range(rounds_of(mechanism)):
        state, drawn = mechanism.next(state, like)
        assert structure.map_leaves(lambda x: (x.shape, str(x.dtype)), state) == form
        assert drawn["w"].shape == (4, 2) and drawn["b"].dtype == np.float32
    assert int(state["round"]) == rounds_of(mechanism)


@pytest.mark.parametrize("more", [(), (3, 4)], ids=["generator", "cipher"])
@pytest.mark.parametrize("backend", ["numpy", "tf", "jax"])
def test_leaves_rounds_nodes_and_seeds_are_independent(backend, more):
    size = 40_000
    if backend == "tf":
        import tensorflow as tf

        like = [tf.zeros([size]), tf.zeros([size])]
    elif backend == "jax":
        import jax.numpy as jnp

        like = [jnp.zeros(size), jnp.zeros(size)]
    else:
        like = [np.zeros(size), np.zeros(size)]
    columns, backend = [], backends.of(like)
    for seed in (SEED, (SEED[0], SEED[1] + 1), (SEED[0] + 1, SEED[1])):
        seed = seeds.seed_in(backend, (*seed, *more))
        for position, index in ((0, 0), (1, 0), (0, 1), (256, 0)):
            drawn = generators.normals(backend, seed, position, like, index)
            columns += [np.asarray(leaf) for leaf in drawn]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert len(columns) == 24
    assert np.abs(correlation).max() < 5 / np.sqrt(size)


@OF_EACH_KIND
def test_tensorflow_graph_equals_the_explicit_product_and_has_the_covariance(name):
    import tensorflow as tf

    mechanism = MECHANISMS[name]
    samples, n = 20_000, rounds_of(mechanism)
    like = [tf.zeros([2, 3], tf.float64), tf.zeros([], tf.float64), tf.zeros([samples])]

    @tf.function
    def step(state, like):
        return mechanism.next(state, like)

    traced = stream(mechanism, like, step=step)
    eager = stream(mechanism, like)
    for a, b in zip(traced, eager, strict=True):
        np.testing.assert_allclose(a[0], b[0], atol=1e-9)
    assert step.experimental_get_tracing_count() == 1
    if is_square(mechanism):
        plain = stream(noise.identity(), like, n)
        for leaf in (0, 1):
            z = np.stack([row[leaf] for row in plain]).reshape(n, -1)
            w = np.stack([row[leaf] for row in traced]).reshape(n, -1)
            expected = np.linalg.solve(mechanism.matrix(n), z)
            # dense keeps its rows in single precision in a graph
            np.testing.assert_allclose(w, expected, atol=1e-5)
    drawn = np.stack([row[2] for row in traced])
    assert drawn.dtype == np.float32
    inverse = np.linalg.inv(mechanism.matrix(n))
    expected = inverse @ inverse.T
    bound = 6 * np.diag(expected).max() * np.sqrt(2 / samples)
    assert np.abs(drawn @ drawn.T / samples - expected).max() < bound


@OF_EACH_KIND
def test_jax_traces_and_has_the_covariance(name):
    import jax
    import jax.numpy as jnp

    mechanism = MECHANISMS[name]
    samples, n = 20_000, rounds_of(mechanism)
    like = jnp.zeros(samples)
    state = mechanism.init(like, np.array(SEED))

    def body(state, _):
        return mechanism.next(state, like)

    _, drawn = jax.jit(lambda s: jax.lax.scan(body, s, None, length=n))(state)
    drawn = np.asarray(drawn)
    inverse = np.linalg.inv(mechanism.matrix(n))
    expected = inverse @ inverse.T
    bound = 6 * np.diag(expected).max() * np.sqrt(2 / samples)
    assert np.abs(drawn @ drawn.T / samples - expected).max() < bound


def test_tensorflow_round_may_be_any_tensor_and_shapes_unknown():
    import tensorflow as tf

    mechanism = noise.tree()

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.int64)]
    )
    def at(like, position):
        state = {"round": position, "seed": tf.constant(SEED, tf.int64)}
        return mechanism.next(state, like)[1]

    like = tf.zeros([4, 3])
    expected = stream(mechanism, like, 8)
    for t in (0, 3, 7):
        np.testing.assert_array_equal(at(like, tf.constant(t, tf.int64)), expected[t])


def test_float16_and_bfloat16_leaves_get_noise_of_their_own_dtype():
    import tensorflow as tf

    like = [tf.zeros([1000], tf.bfloat16), tf.zeros([1000], tf.float16)]
    drawn = noise.blt_from((0.5,), (0.25,))
    _, first = drawn.next(drawn.init(like, SEED), like)
    assert [leaf.dtype for leaf in first] == [tf.bfloat16, tf.float16]
    assert abs(float(tf.math.reduce_std(tf.cast(first[0], tf.float32))) - 1) < 0.1


@pytest.mark.parametrize("backend", ["numpy", "tf", "graph", "jax"])
def test_no_noise_beyond_the_rounds_it_was_made_for(backend):
    mechanism = noise.tree("honaker", 2)
    if backend == "numpy":
        like, step, error = np.zeros(2), mechanism.next, ValueError
    elif backend == "jax":
        import jax

        like = jax.numpy.zeros(2)
        state = mechanism.init(like, np.array(SEED))
        for _ in range(2):
            state, drawn = mechanism.next(state, like)
            assert np.isfinite(drawn).all()
        # Outside of a trace it refuses; inside, where nothing can be raised, NaN.
        assert np.isnan(jax.jit(mechanism.next)(state, like)[1]).all()
        with pytest.raises(ValueError, match="built for 2 rounds"):
            mechanism.next(state, like)
        return
    else:
        import tensorflow as tf

        like, error = tf.zeros(2), tf.errors.InvalidArgumentError
        step = mechanism.next if backend == "tf" else tf.function(mechanism.next)
    stream(mechanism, like, 2, step=step)
    with pytest.raises(error, match="built for 2 rounds"):
        stream(mechanism, like, 3, step=step)


def test_jax_keeps_all_bits_of_the_seed():
    import jax.numpy as jnp

    like = jnp.zeros(4)
    mechanism = noise.identity()
    low, high = (
        mechanism.next(mechanism.init(like, np.array(seed)), like)[1]
        for seed in ([1, 2], [1 + 2**40, 2])
    )
    assert not np.array_equal(low, high)
    with pytest.raises(ValueError, match="too short"):
        mechanism.init(like, jnp.array([1, 2]))


@pytest.mark.parametrize("seed", [1, (1,), (1, 2, 3), (0.5, 1), (2**65, 0)])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed must be two integers"):
        noise.identity().init(np.zeros(2), seed)


def test_bad_structures():
    with pytest.raises(TypeError, match="floating-point"):
        noise.identity().init(np.zeros(2, np.int32), SEED)
    with pytest.raises(ValueError, match="leaves"):
        noise.identity().init({}, SEED)


@pytest.mark.parametrize("library", ["numpy", "tf", "jax"])
@EVERY
def test_a_state_is_for_structures_of_its_shapes(mechanism, library):
    """Where a state keeps noise; without, a `like` is all that says the shapes."""
    if library == "numpy":
        make = np.zeros
    elif library == "tf":
        import tensorflow as tf

        make = tf.zeros
    else:
        import jax

        make = jax.numpy.zeros
    state = mechanism.init({"w": make((3, 4))}, np.array(SEED))
    others = ({"w": make((1, 4))}, {"w": make((3, 4)), "b": make((2,))})
    if not mechanism.buffers:
        return
    with pytest.raises(ValueError, match=r"leaf at w has shape \(1, 4\).*\(3, 4\)"):
        mechanism.next(state, others[0])
    with pytest.raises(ValueError, match="same"):
        mechanism.next(state, others[1])


def test_a_tensor_of_pytorch_is_told_how_to_convert_it():
    tensor = type("Tensor", (), {"__module__": "torch"})()
    for refused in (
        lambda: noise.identity().init({"w": tensor}, SEED),
        lambda: averaging.uta(2).init([tensor]),
    ):
        with pytest.raises(TypeError, match=r"detach\(\).cpu\(\).numpy\(\)"):
            refused()


@EVERY
def test_it_is_rebuilt_from_what_was_saved_without_a_search(mechanism, monkeypatch):
    import scipy.optimize

    def search(*args, **kwargs):
        raise AssertionError("optimised again")

    monkeypatch.setattr(scipy.optimize, "minimize", search)
    monkeypatch.setattr(sys.modules["tff_agg.noise.dense"], "optimal", search)
    again = noise.from_json(json.loads(json.dumps(mechanism.to_json())))
    n, like = rounds_of(mechanism), np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(again.matrix(n), mechanism.matrix(n))
    np.testing.assert_array_equal(stream(again, like), stream(mechanism, like))
    for name in ("name", "parameters", "max_rounds", "buffers", "bands"):
        assert getattr(again, name) == getattr(mechanism, name)
    assert again.to_json() == mechanism.to_json()


def test_only_what_was_saved_is_rebuilt():
    with pytest.raises(ValueError, match=r"mechanism must be one of .*'blt'.* 'mine'"):
        noise.from_json({"mechanism": "mine"})
    with pytest.raises(ValueError, match="not the values of 'blt'"):
        noise.from_json({"mechanism": "blt", "decays": [0.5]})
    with pytest.raises(ValueError, match="not the values of 'tree'"):
        noise.from_json({**noise.tree().to_json(), "branches": 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: noise.tree("best"), "estimator"),
        (lambda: noise.tree("honaker"), "rounds"),
        (lambda: noise.tree(completion=True), "rounds"),
        (lambda: noise.tree(rounds=0), "rounds"),
        (lambda: noise.restart_every(noise.tree("honaker", 4), 5), "period"),
        (lambda: noise.restart_every(noise.tree(), 0), "period"),
        (lambda: noise.banded_from([0.0, 1.0]), "diagonal"),
        (lambda: noise.banded_from([1.0, np.nan]), "finite"),
        (lambda: noise.banded_square_root(0), "bands"),
        (lambda: noise.banded(10, 11), "bands"),
        (lambda: noise.banded(10, 2, participations=2), "separation"),
        (lambda: noise.banded(10, 2, separation=5, participations=3), "do not fit"),
        (lambda: noise.blt(10, 0), "buffers"),
        (lambda: noise.blt(10, 2, metric="median"), "metric"),
        (lambda: noise.blt_from((1.0,), (0.5,)), "decays"),
        (lambda: noise.blt_from((0.5,), (1.5,)), "weights"),
        (lambda: noise.blt_from((0.5,), ()), "as many"),
        (lambda: noise.dense(0), "rounds"),
        (lambda: noise.dense_from(np.ones((2, 2))), "lower triangular"),
        (lambda: noise.dense(5).check_rounds(6), "built for 5 rounds"),
        (lambda: noise.tree().check_rounds(0), "rounds"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
def test_a_blt_step_takes_one_draw_and_two_multiplications_a_buffer(buffers):
    """Counted on numbers that count: the step is the same for any kind of leaf."""
    import jax.numpy as jnp
    from jax import make_jaxpr

    mechanism = noise.blt_from((0.9, 0.7, 0.5, 0.3)[:buffers], (0.2,) * buffers)
    drawn = []

    def draw(position, index=0):
        drawn.append(position)
        return jnp.ones(5)

    def step(*held):
        backend = backends.of(jnp.ones(5))
        return mechanism.stream.step(backend, held, 3, draw, jnp.ones(5))

    equations = make_jaxpr(step)(*[jnp.ones(5)] * buffers).eqns
    names = [str(equation.primitive) for equation in equations]
    assert len(drawn) == 1
    assert names.count("mul") == 2 * buffers
    assert names.count("add") + names.count("sub") == 2 * buffers
