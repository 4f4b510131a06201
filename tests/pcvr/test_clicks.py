"""Files of clicks: what is read, and what is refused and how."""

import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pcvr import clicks, features, split, synthetic

NEWS = features.parse(features.NEWS)
COLUMNS = [feature.column for feature in NEWS]


def table(**columns):
    """A few clicks, with some columns replaced, or left out where None."""
    plain = {
        "timestamp": [1_700_000_000_000 + i for i in (3, 1, 2, 1)],
        "label": [0, 1, 1, 0],
        "user_id": ["b", "a", "b", "c"],
        "ad": [7, 8, 7, None],
    }
    kept = {k: v for k, v in (plain | columns).items() if v is not None}
    return pa.table(kept)


def test_parquet_and_csv_give_the_same_examples(tmp_path):
    made = synthetic.clicks(500)
    pq.write_table(made, tmp_path / "clicks.parquet")
    pa.csv.write_csv(made, tmp_path / "clicks.csv")
    found = [
        clicks.read(str(tmp_path / name), COLUMNS)
        for name in ("clicks.parquet", "clicks.csv")
    ]
    first, second = (features.encode(read, NEWS) for read in found)
    np.testing.assert_array_equal(first, second)
    for name in ("times", "labels", "users"):
        one, other = (getattr(read, name) for read in found)
        np.testing.assert_array_equal(one, other)


def test_clicks_come_in_the_order_of_time_and_know_the_clock():
    found = clicks.from_table(table(), ["ad", "hour", "weekday"], "here")
    assert found.labels.tolist() == [1, 0, 1, 0]
    assert found.features["ad"].to_pylist() == ["8", None, "7", "7"]
    # 1,700,000,000 s: Tuesday, 14 November 2023, 22:13 UTC; day 0 was a Thursday.
    assert set(found.features["hour"].to_pylist()) == {"22"}
    assert set(found.features["weekday"].to_pylist()) == {"5"}
    assert found.users.tolist() == [1, 2, 0, 0]
    own = clicks.from_table(table(hour=["a", "b", "c", "d"]), ["hour"], "here")
    assert own.features["hour"].to_pylist() == ["b", "d", "c", "a"]


def test_times_may_be_timestamps():
    kind = pa.timestamp("s")
    times = pa.array([1_700_000_003, 1_700_000_001, 2e9, 1_700_000_002], pa.int64())
    found = clicks.from_table(table(timestamp=times.cast(kind)), ["ad"], "here")
    assert found.times[0] == 1_700_000_001_000


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"label": None}, r"missing columns \['label'\]; there are .*'ad'"),
        ({"label": [0, 1, 2, 1]}, r"'label' holds other values .* 1 of 4 rows"),
        ({"label": [0, 1, None, 1]}, r"'label' has 1 missing values"),
        ({"label": [0.0, 1.0, 0.5, 1.0]}, r"'label' has type double, expected 0 or 1"),
        ({"timestamp": [1, 2, 3, 4]}, r"before 1973; are they in seconds\?"),
        ({"timestamp": list("abcd")}, r"'timestamp' has type string, expected whole"),
        ({"ad": [0.5, 1.0, 2.0, 3.0]}, r"'ad' has type double.*into bins first"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(changed, says):
    with pytest.raises(ValueError, match=f"^here: .*{says}"):
        clicks.from_table(table(**changed), ["ad"], "here")


def test_a_wrong_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        clicks.read(str(tmp_path / "clicks.parquet"), ["ad"])
    for name, says in {
        "clicks.parquet": "cannot be read as parquet",
        "clicks.txt": "must end in .parquet, .csv or .csv.gz",
    }.items():
        (tmp_path / name).write_text("no clicks")
        with pytest.raises(ValueError, match=says):
            clicks.read(str(tmp_path / name), ["ad"])
    with pytest.raises(ValueError, match="has no clicks"):
        clicks.from_table(table().slice(0, 0), ["ad"], "here")


def test_hashing_is_the_same_in_every_process():
    """Python's own hash of text differs from process to process; this must not."""
    code = (
        "import hashlib; from pcvr import features, clicks, synthetic;"
        "news = features.parse(features.NEWS);"
        "read = clicks.from_table(synthetic.clicks(300), [f.column for f in news], '');"
        "rows = features.encode(read, news);"
        "print(hashlib.sha256(rows.tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1
    assert features.bucket("device", "phone", 64) == 7


def test_hashing_keeps_columns_and_missing_values_apart():
    wide = 1 << 40
    values = [("a", "b"), ("b", "b"), ("a", None), ("a", ""), ("a", "None"), ("ab", "")]
    assert len({features.bucket(c, v, wide) for c, v in values}) == len(values)


@pytest.mark.parametrize(
    "text", ["", "ad", "ad=", "=x", "ad=x,", "ad=x:0", "ad=x:", "ad=x:y", "a=x b=x"]
)
def test_a_wrong_declaration_of_features_is_refused(text):
    with pytest.raises(ValueError, match="feature_classes"):
        features.parse(text)


def test_the_split_is_by_time_and_keeps_equal_times_together():
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 50, 400))
    found = split.by_time(times, 0.8, 0.1)
    parts = [times[found[name]] for name in split.SPLITS]
    assert sum(map(len, parts)) == 400
    for earlier, later in itertools.pairwise(parts):
        assert earlier.max() < later.min()
    assert abs(len(parts[0]) - 320) <= np.bincount(times).max()
    with pytest.raises(ValueError, match="nothing is left for train"):
        split.by_time(np.zeros(10, int), 0.8, 0.1)
    with pytest.raises(ValueError, match="leave something for the test"):
        split.by_time(times, 0.8, 0.2)
