"""When two structures are the same: kinds, names, dtypes, shapes and bits."""

import numpy as np


def assert_identical(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_identical(x, y)
    elif isinstance(a, np.ndarray | np.generic):
        assert a.dtype == b.dtype
        assert a.dtype.str == b.dtype.str
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    else:
        assert a == b
