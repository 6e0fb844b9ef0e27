"""A message as one JSON object, as sinks write it for whoever reads JSON."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Datum

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_encode = json.JSONEncoder(separators=(",", ":")).encode


def record(datum: Datum) -> bytes:
    """Returns the whole message on one line, in ASCII.

    It has ``id``, ``value``, ``keys``, ``headers`` and ``eventTime``, in milliseconds since 1970. A
    value that is not UTF-8 is in ``valueBase64`` instead of ``value``.
    """
    time = datum.event_time
    fields: dict[str, Any] = {
        "id": datum.id,
        **_value(datum.value),
        "keys": list(datum.keys),
        "headers": dict(datum.headers),
        "eventTime": None if time is None else (time - _EPOCH) // _MILLISECOND,
    }
    return _encode(fields).encode()


def _value(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": base64.b64encode(value).decode()}


def records(rows: pa.RecordBatch) -> list[bytes]:
    """Returns each row as ``record`` does, in a third of the time."""
    times = pc.divide(rows.column("event_time").cast(pa.int64()), 1000).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("id", "value", "keys", "headers"))
    return [
        (
            f'{{"id":{encode_basestring_ascii(message_id)},{_value_field(value)},'
            f'"keys":{_encode(keys) if keys else "[]"},'
            f'"headers":{_encode(dict(headers)) if headers else "{}"},'
            f'"eventTime":{"null" if time is None else time}}}'
        ).encode()
        for message_id, value, keys, headers, time in zip(*columns, times, strict=True)
    ]


def _value_field(value: bytes) -> str:
    try:
        return f'"value":{encode_basestring_ascii(value.decode())}'
    except UnicodeDecodeError:
        return f'"valueBase64":"{base64.b64encode(value).decode()}"'
