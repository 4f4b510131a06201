"""Small sources of sentences for the tests of the data."""

import dataclasses

import pyarrow as pa
import pytest

from stackoverflow.data.sources import SCHEMA


@dataclasses.dataclass(frozen=True)
class ListSource:
    """Sentences given as (client_id, type, creation_date, tokens, split)."""

    rows: tuple
    shard_rows: int = 7
    batch_rows: int = 3
    name: str = "list"

    def fingerprint(self):
        return {"rows": len(self.rows)}

    def num_shards(self):
        return -(-len(self.rows) // self.shard_rows)

    def num_sentences(self):
        return len(self.rows)

    def where(self, shard):
        return f"list, shard {shard}"

    def read(self, shard):
        rows = self.rows[shard * self.shard_rows : (shard + 1) * self.shard_rows]
        for start in range(0, len(rows), self.batch_rows):
            part = rows[start : start + self.batch_rows]
            yield pa.RecordBatch.from_arrays(
                [pa.array([row[i] for row in part], pa.string()) for i in range(5)],
                schema=SCHEMA,
            )


@pytest.fixture
def list_source():
    return ListSource


@pytest.fixture
def few_rows():
    """Two train users, one heldout, one test; ben writes both types, mixed up."""
    day = "2010-01-02 03:04:05 UTC"
    return (
        ("ben", "answer", day, "use a loop", "train"),
        ("ann", "question", day, "why is the loop slow ?", "train"),
        ("ben", "question", "2011-05-06", "the loop", "train"),
        ("cat", "answer", "", "the " + "zebra " * 9 + "loop", "heldout"),
        ("ben", "answer", day, "the " * 25 + "end", "train"),
        ("ann", "question", day, "the end", "train"),
        ("dan", "question", day, "unseen words only", "test"),
        ("ben", "question", "2012-07-08", "is a loop", "train"),
    )
