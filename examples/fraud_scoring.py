"""Columnar fraud scoring: a call gets a batch of payments as a table, and scores all at once.

Suspicious payments go to people, the others to the ledger. What is no payment has an error in its
row, and becomes a dead letter without holding up its batch.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from ebbflow import Limits, Pipeline
from ebbflow.connectors import Kafka, Log

PAYMENT = pa.schema([("amount", pa.float64()), ("country", pa.string()), ("card", pa.string())])
RISKY = pa.array(["XX", "YY"])


def score(batch: pa.RecordBatch) -> pa.RecordBatch:
    payments = read(batch.column("value"))
    amount = pc.min_element_wise(payments["amount"], 10_000.0, skip_nulls=False)
    abroad = pc.if_else(pc.is_in(payments["country"], RISKY), 0.5, 0.0)
    risk = pc.add(pc.divide(amount, 20_000.0), abroad)
    tags = pc.if_else(pc.greater(pc.fill_null(risk, 0.0), 0.7), "review", "book")
    return pa.RecordBatch.from_pydict(
        {
            "value": batch.column("value"),
            "tags": pa.array([[tag] for tag in tags.to_pylist()], pa.list_(pa.string())),
            "error": pc.if_else(pc.is_null(risk), "not a payment: it has no amount", None),
        }
    )


def read(values: pa.Array) -> pa.RecordBatch:
    """Parses a batch of JSON in one go; fields that a row lacks are null."""
    options = json.ParseOptions(explicit_schema=PAYMENT, unexpected_field_behavior="ignore")
    lines = pa.py_buffer(b"\n".join(value or b"{}" for value in values.to_pylist()))
    table = json.read_json(pa.BufferReader(lines), parse_options=options)
    (payments,) = table.combine_chunks().to_batches()
    return payments


payments = (
    Pipeline("payments")
    .source("in", Kafka(brokers=["localhost:9092"], topic="payments"))
    .map("score", score, mode="columnar", limits=Limits(read_batch_size=2_000))
    .sink("ledger", Log(), tags="book")
    .sink("review", Log(), after="score", tags="review")
)

if __name__ == "__main__":
    payments.run()
