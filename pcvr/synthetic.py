"""Made-up clicks with the columns of the news sessions, for runs without a file.

Articles come up and go out of fashion, and some are read on more than others; phones
and evenings have effects of their own. Nobody's data are in it.
"""

import numpy as np
import pyarrow as pa

from pcvr.clicks import LABEL, TIMESTAMP, USER

_START = 1_700_000_000_000
_DAY = 24 * 3_600_000
_DAYS = 20
_SIZES = {"environment": 3, "device": 4, "os": 8, "country": 10, "region": 28}


def clicks(rows: int) -> pa.Table:
    """Makes so many clicks, always the same ones."""
    rng = np.random.default_rng([0, rows])
    times = np.sort(rng.integers(_START, _START + _DAYS * _DAY, rows))
    # The articles in fashion move on by ten a day.
    article = (times - _START) // _DAY * 10 + rng.geometric(0.05, rows)
    features = {name: rng.geometric(0.4, rows) % n for name, n in _SIZES.items()}
    features["referrer"] = rng.integers(1, 8, rows)
    logits = rng.normal(0, 0.8, article.max() + 1)[article]
    for values in features.values():
        logits += rng.normal(0, 0.4, values.max() + 1)[values]
    logits += 0.5 * np.cos(2 * np.pi * times / _DAY)
    label = rng.random(rows) < 1 / (1 + np.exp(0.4 - logits))
    user = rng.integers(0, max(rows // 3, 1), rows)
    columns = {USER: user, TIMESTAMP: times, "article": article, **features}
    return pa.table({**columns, LABEL: label.astype(np.int8)})
