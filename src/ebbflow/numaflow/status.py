"""The end of a gRPC call that failed: status, message and the function's own stack.

Functions send these in trailers. The stack is in ``grpc-status-details-bin``, which is a
``google.rpc.Status`` whose details may hold a ``google.rpc.DebugInfo``, and a wish to wait as
``google.rpc.RetryInfo``. Whatever cannot be read there is left out: a failure must not be hidden by
a second one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from ebbflow.domain.errors import StreamBroken

OK = "0"
UNKNOWN, UNAVAILABLE = 2, 14
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip

_DEBUG_INFO, _RETRY_INFO = b"/google.rpc.DebugInfo", b"/google.rpc.RetryInfo"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_failure(headers: Mapping[str, str], trailers: Mapping[str, str]) -> StreamBroken:
    """Returns the error that the headers and trailers of a failed call say."""
    if "grpc-status" not in trailers:
        http = headers.get(":status", "no status")
        return StreamBroken(f"the function ended the stream without a result (HTTP {http})")
    text = trailers["grpc-status"]
    code = int(text) if text.isdecimal() else UNKNOWN
    name = CODES[code] if code < len(CODES) else f"status {code}"
    said = unquote(trailers.get("grpc-message", ""))
    stack, wait = read_details(trailers.get("grpc-status-details-bin", ""))
    return StreamBroken(f"{name}: {said}" if said else name, code, stack, wait)


def read_details(details: str) -> tuple[str, int | None]:
    """Returns the stack and the wait in the details of a status, as far as there are any."""
    try:
        status = base64.b64decode(details + "=" * (-len(details) % 4), validate=True)
        infos = [dict(_fields(value)) for number, value in _fields(status) if number == 3]
        stack = "\n".join(line for info in infos for line in _read_debug_info(info))
        return stack, next(filter(None, map(_read_retry_info, infos)), None)
    except (binascii.Error, DecodeError, IndexError, ValueError):
        return "", None


def _read_debug_info(detail: Mapping[int, bytes]) -> list[str]:
    if not detail.get(1, b"").endswith(_DEBUG_INFO):
        return []
    lines = [value for number, value in _fields(detail.get(2, b"")) if number in (1, 2)]
    return [line.decode("utf-8", "replace") for line in lines]


def _read_retry_info(detail: Mapping[int, bytes]) -> int | None:
    """Returns the milliseconds after which the function asks to be called again."""
    if not detail.get(1, b"").endswith(_RETRY_INFO):
        return None
    duration = Duration.FromString(dict(_fields(detail.get(2, b""))).get(1, b""))
    return duration.ToMilliseconds()


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the fields of a protobuf message that hold bytes, each with its number."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no such kind of field: {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
