"""Tables keep whole rows, whatever interrupted their writer."""

import pytest

from tff_agg.experiment.run import tables


@pytest.fixture
def table(tmp_path):
    made = tables.RoundTable(tmp_path / "t.csv", ["round", "kind", "loss"])
    made.restore([])
    for t in range(1, 6):
        made.append({"round": t, "kind": "a, b", "loss": 1 / t})
    return made


def test_rows_come_back_exactly(table):
    rows = tables.read_rows(table.path)
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [float(row["loss"]) for row in rows] == [1 / t for t in range(1, 6)]
    assert rows[0]["kind"] == "a, b"


@pytest.mark.parametrize("cut", range(2, 12))
def test_half_a_row_is_written_again(table, cut):
    whole = table.path.read_bytes()
    rows = tables.read_rows(table.path)
    table.path.write_bytes(whole[:-cut])
    assert tables.read_columns(table.path)["round"] == [1, 2, 3, 4]
    assert table.restore(rows) == [5]
    assert table.path.read_bytes() == whole


def test_columns_of_some_rows_only(tmp_path):
    table = tables.RoundTable(tmp_path / "v.csv", ["round", "weights", "accuracy"])
    table.restore([])
    table.append({"round": 1, "weights": "iterate", "accuracy": 0.25})
    table.append({"round": 1, "weights": "aggregate", "accuracy": 0.5})
    found = tables.read_columns(table.path, {"weights": "aggregate"})
    assert found == {"round": [1.0], "accuracy": [0.5]}


def test_a_row_must_have_all_columns(table):
    with pytest.raises(ValueError, match="a row needs"):
        table.append({"round": 6, "loss": 0.0})


def test_the_first_column_is_the_round(tmp_path):
    with pytest.raises(ValueError, match="first column must be 'round'"):
        tables.RoundTable(tmp_path / "x.csv", ["loss"])
