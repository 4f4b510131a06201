"""The libraries that the server's functions are run in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

LIBRARIES = {
    "numpy": (np.asarray, lambda f: f),
    "tf": (tf.convert_to_tensor, lambda f: f),
    "tf graph": (tf.convert_to_tensor, lambda f: tf.function(f, autograph=False)),
    "jax": (jnp.asarray, lambda f: f),
    "jax trace": (jnp.asarray, jax.jit),
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    """What makes an array of a library, and what compiles a function there."""
    return LIBRARIES[request.param]
