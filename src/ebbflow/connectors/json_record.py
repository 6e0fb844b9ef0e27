"""A message as one JSON object, as sinks write it for whoever reads JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

from ebbflow.message import Datum


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
        "eventTime": None if time is None else int(time.timestamp() * 1000),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _value(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": base64.b64encode(value).decode()}
