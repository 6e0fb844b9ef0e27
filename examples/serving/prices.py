"""Answers from a join with a table: requests that have arrived together are joined at once.

A product that has no price yet keeps its request open: the message is redelivered a moment later,
and finds the table as it is then.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

TABLE = Path(__file__).with_name("prices.csv")
WRONG = 'write {"product": "pear", "count": 3}'


class Quote:
    """Answers ``{"product": "pear", "count": 3}`` with the price of all of them, in cents."""

    def __init__(self, table: Path = TABLE) -> None:
        self.path = table
        self.read_at = 0.0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        asked = read(batch.column("value").to_pylist())
        rows = asked.join(self.prices(), "product", join_type="left outer").sort_by("row")
        (joined,) = rows.combine_chunks().to_batches()
        return pa.RecordBatch.from_pydict(
            {
                "value": answer(joined),
                "error": joined["error"],
                "nack": pc.and_(pc.is_null(joined["error"]), pc.is_null(joined["price"])),
                "nack_delay": pa.repeat(500, len(batch)),
                "nack_max_deliveries": pa.repeat(3, len(batch)),
                "nack_reason": pa.repeat("no price yet", len(batch)),
            }
        )

    def prices(self) -> pa.Table:
        """Returns the table, read anew when the file has changed."""
        changed = self.path.stat().st_mtime
        if changed != self.read_at:
            self.table, self.read_at = csv.read_csv(self.path), changed
        return self.table


def read(values: list[bytes]) -> pa.Table:
    """Returns requests as a table, each with its number; those that are none have an error."""
    asked = [parse(value) for value in values]
    return pa.table(
        {
            "row": pa.array(range(len(asked)), pa.int64()),
            "product": pa.array([product for product, _ in asked], pa.string()),
            "count": pa.array([count for _, count in asked], pa.int64()),
            "error": pa.array([None if count else WRONG for _, count in asked], pa.string()),
        }
    )


def parse(value: bytes) -> tuple[str | None, int | None]:
    try:
        order = json.loads(value)
        return str(order["product"]), int(order["count"])
    except (KeyError, TypeError, ValueError):
        return None, None


def answer(joined: pa.RecordBatch) -> pa.Array:
    """Returns what each request is answered with."""
    totals = pc.multiply(joined["price"], joined["count"])
    rows = zip(joined["product"].to_pylist(), totals.to_pylist(), strict=True)
    texts = [json.dumps({"product": product, "total": total}) for product, total in rows]
    return pa.array([text.encode() for text in texts], pa.binary())
