"""What the Parquet source promises."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stackoverflow.data import parquet
from stackoverflow.data.parquet import ParquetSource
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import SCHEMA
from stackoverflow.data.synthetic import SyntheticSource

RLISTS = os.path.join(
    os.path.dirname(__file__), "../../../shared/data/rlists/rlists.parquet"
)
SOURCE = SyntheticSource(users=100, words=60, seed=6)


@pytest.fixture(scope="module")
def table():
    return pa.Table.from_batches(SOURCE.read(0))


def dictionary_encoded(table):
    return pa.table(
        {
            name: table[name].dictionary_encode()
            if name in ("client_id", "type", "split")
            else table[name]
            for name in table.column_names
        }
    )


def test_a_large_row_group_is_cut_without_loss(table, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_SLICE_ROWS", 200)
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 70)
    path = os.fspath(tmp_path / "x.parquet")
    pq.write_table(table, path)
    source = ParquetSource(path)
    assert source.num_shards() == min(8, table.num_rows // 200) > 2
    batches = [b for i in range(source.num_shards()) for b in source.read(i)]
    assert all(batch.num_rows for batch in batches)
    assert pa.Table.from_batches(batches).equals(table.combine_chunks())


def test_files_and_folders_read_like_the_sentences_they_hold(table, tmp_path):
    expected = prepare_store(SOURCE, tmp_path / "expected")
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=500)
    folder = tmp_path / "folder"
    folder.mkdir()
    half = table.num_rows // 2
    encoded = dictionary_encoded(table)
    pq.write_table(encoded.slice(half), folder / "b.parquet")
    pq.write_table(encoded.slice(0, half), folder / "a.parquet", row_group_size=300)
    for path in (tmp_path / "one.parquet", folder):
        source = ParquetSource(os.fspath(path))
        assert source.num_shards() > 2
        assert source.num_sentences() == table.num_rows
        store = prepare_store(source, f"{path}.store", workers=1)
        assert store.summary == expected.summary
        for user in store.users("train")[:20]:
            assert np.array_equal(store.rows(user), expected.rows(user))


def test_the_fingerprint_follows_the_content(table, tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    before = ParquetSource(os.fspath(path)).fingerprint()
    assert ParquetSource(os.fspath(path)).fingerprint() == before
    pq.write_table(table.slice(1), path)
    assert ParquetSource(os.fspath(path)).fingerprint() != before


def test_missing_columns_are_named(table, tmp_path):
    path = os.fspath(tmp_path / "x.parquet")
    pq.write_table(table.drop_columns(["split", "type"]), path)
    with pytest.raises(ValueError, match=r"missing columns \['type', 'split'\]"):
        ParquetSource(path)


def test_dates_may_be_left_out(table, tmp_path):
    path = os.fspath(tmp_path / "x.parquet")
    pq.write_table(table.drop_columns(["creation_date"]), path)
    store = prepare_store(ParquetSource(path), tmp_path / "store")
    assert store.summary == prepare_store(SOURCE, tmp_path / "with").summary


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_bytes_that_are_no_text_are_refused_by_file_and_column(table, tmp_path, kind):
    path = os.fspath(tmp_path / "x.parquet")
    texts = [b"secret \xff"] + [b"fine"] * (table.num_rows - 1)
    raw = pa.array(texts, pa.binary())
    # As a careless writer leaves it: said to be text, and not looked at.
    column = pa.Array.from_buffers(kind, len(raw), raw.buffers())
    place = SCHEMA.get_field_index("tokens")
    pq.write_table(table.set_column(place, "tokens", column), path)
    message = r"x\.parquet, row group 0: column 'tokens' holds bytes that are not UTF-8"
    with pytest.raises(ValueError, match=message) as caught:
        prepare_store(ParquetSource(path), tmp_path / "store")
    assert "secret" not in str(caught.value)
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_columns_of_a_wrong_type_are_named(table, tmp_path):
    path = os.fspath(tmp_path / "x.parquet")
    lists = pa.array([["a", "b"]] * table.num_rows)
    column = SCHEMA.get_field_index("tokens")
    pq.write_table(table.set_column(column, "tokens", lists), path)
    with pytest.raises(ValueError, match="'tokens' has type list"):
        list(ParquetSource(path).read(0))


def test_what_is_not_there_or_not_parquet_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        ParquetSource(os.fspath(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"no \*.parquet files"):
        ParquetSource(os.fspath(tmp_path))
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(ValueError, match="not a Parquet file"):
        ParquetSource(os.fspath(tmp_path / "text.parquet"))


def test_damaged_pages_leave_no_store(table, tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[200 : len(content) // 2] = bytes(len(content) // 2 - 200)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.parquet"):
        prepare_store(ParquetSource(os.fspath(path)), tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_real_sentences(tmp_path):
    if not os.path.exists(RLISTS):
        pytest.skip("the R mailing lists are not at ../shared/data/rlists")
    assert ParquetSource(RLISTS).num_sentences() == 1_060_883
    # A twentieth of them, at its beginning.
    some = next(pq.ParquetFile(RLISTS).iter_batches(50_000))
    path = tmp_path / "some.parquet"
    pq.write_table(pa.Table.from_batches([some]), path, row_group_size=25_000)
    store = prepare_store(ParquetSource(os.fspath(path)), tmp_path / "store", workers=2)
    assert store.vocabulary.num_ids == 10_004
    sentences = sum(store.summary[split]["sentences"] for split in store.summary)
    assert sentences == len(some) == 50_000
    assert 0 < store.summary["heldout"]["oov_share"] < 0.2
    user = store.users("train")[0]
    expected = sum(len(row[row > 0]) for row in store.rows(user))
    assert expected > 0
