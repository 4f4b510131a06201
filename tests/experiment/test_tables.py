"""Tables keep whole rows, whatever interrupted their writer."""

import pytest

from tff_agg.experiment.run import tables


@pytest.fixture
def table(tmp_path):
    made = tables.RoundTable(tmp_path / "t.csv", ["round", "kind", "loss"])
    made.keep_until(0)
    for t in range(1, 6):
        made.append({"round": t, "kind": "a, b", "loss": 1 / t})
    return made


def test_rows_come_back_exactly(table):
    rows = tables.read_rows(table.path)
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [float(row["loss"]) for row in rows] == [1 / t for t in range(1, 6)]
    assert rows[0]["kind"] == "a, b"


def test_cut_back_to_a_round(table):
    table.keep_until(3)
    assert tables.read_columns(table.path)["round"] == [1, 2, 3]


@pytest.mark.parametrize("cut", range(1, 12))
def test_half_a_row_is_dropped(table, cut):
    whole = table.path.read_bytes()
    table.path.write_bytes(whole[:-cut])
    table.keep_until(99)
    assert tables.read_columns(table.path)["round"] == [1, 2, 3, 4]
    table.append({"round": 5, "kind": "a, b", "loss": 1 / 5})
    assert table.path.read_bytes() == whole


def test_columns_of_some_rows_only(tmp_path):
    table = tables.RoundTable(tmp_path / "v.csv", ["round", "weights", "accuracy"])
    table.keep_until(0)
    table.append({"round": 1, "weights": "iterate", "accuracy": 0.25})
    table.append({"round": 1, "weights": "aggregate", "accuracy": 0.5})
    found = tables.read_columns(table.path, {"weights": "aggregate"})
    assert found == {"round": [1.0], "accuracy": [0.5]}


def test_another_header_is_refused(table):
    other = tables.RoundTable(table.path, ["round", "accuracy"])
    with pytest.raises(ValueError, match="has the columns"):
        other.keep_until(9)


def test_a_row_must_have_all_columns(table):
    with pytest.raises(ValueError, match="a row needs"):
        table.append({"round": 6, "loss": 0.0})


def test_the_first_column_is_the_round(tmp_path):
    with pytest.raises(ValueError, match="first column must be 'round'"):
        tables.RoundTable(tmp_path / "x.csv", ["loss"])
