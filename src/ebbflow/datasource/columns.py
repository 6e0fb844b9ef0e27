"""The columns of the data source: those it reads, always the same, and those it can write."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ebbflow.domain.errors import DataSourceError, did_you_mean
from ebbflow.nats.pull import Deliveries

READ = StructType(
    [
        StructField("subject", StringType()),
        StructField("sequence", LongType()),
        StructField("time", TimestampType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("data", BinaryType()),
    ]
)
_READ_ARROW = pa.schema(
    [
        ("subject", pa.string()),
        ("sequence", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
    ]
)
WRITTEN = ("data", "subject", "headers", "msg_id")


def check_read(schema: StructType) -> None:
    """Refuses a schema of the user's: what is read has always the same columns."""
    if [(field.name, field.dataType) for field in schema] != [
        (field.name, field.dataType) for field in READ
    ]:
        raise DataSourceError(
            f"The columns are always {READ.simpleString()[7:-1]}.",
            "Leave out schema(...), and select or cast what was read.",
        )


def to_batch(messages: Deliveries) -> pa.RecordBatch:
    """Returns messages as Spark takes them."""
    parcel = messages.parcel
    headers: list[list[tuple[str, str]]] = [[]] * len(parcel)
    for row in parcel.rows_with_headers():
        headers[row] = list((parcel.headers(row) or {}).items())
    arrays = [
        pa.array(parcel.subjects, pa.binary()).cast(pa.string()),
        pa.array(messages.seqs, pa.int64()),
        messages.times(),
        pa.array(headers, _READ_ARROW.field("headers").type),
        parcel.payloads(),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_READ_ARROW)


def check_written(schema: StructType, subject: str | None) -> None:
    """Refuses columns that cannot be published; ``subject`` is that of the option."""
    for field in schema:
        _check_column(field.name, field.dataType)
    if "data" not in schema.names:
        raise DataSourceError(
            "There is no column data.", "Name the column with what is to be published data."
        )
    if "subject" not in schema.names and subject is None:
        raise DataSourceError(
            "It is not said which subject to publish to.",
            "Set the option subject, or add a column subject.",
        )


def _check_column(name: str, kind: DataType) -> None:
    if name not in WRITTEN:
        meant = did_you_mean(name, WRITTEN, "there are")
        raise DataSourceError(f"Column {name} cannot be published.", f"Drop or rename it; {meant}")
    if not _fits(name, kind):
        wanted = {"data": "binary or string", "headers": "map<string,string>"}.get(name, "string")
        raise DataSourceError(
            f"Column {name} is {kind.simpleString()}, and has to be {wanted}.", "Cast it."
        )


def _fits(name: str, kind: DataType) -> bool:
    if name == "headers":
        return isinstance(kind, MapType) and all(
            isinstance(part, StringType) for part in (kind.keyType, kind.valueType)
        )
    return isinstance(kind, StringType) or (name == "data" and isinstance(kind, BinaryType))
