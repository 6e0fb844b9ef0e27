"""The end of a gRPC call that failed: status, message and the function's own stack.

Functions send these in trailers. The stack is in ``grpc-status-details-bin``, which is a
``google.rpc.Status`` whose details may hold a ``google.rpc.DebugInfo``, and a wish to wait as
``google.rpc.RetryInfo``. Whatever cannot be read there is left out: a failure must not be hidden by
a second one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from ebbflow.domain.errors import StreamBroken
from ebbflow.numaflow.proto import rpc_status_pb2

OK = "0"
UNKNOWN, UNAVAILABLE = 2, 14
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


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
        raw = base64.b64decode(details + "=" * (-len(details) % 4), validate=True)
        infos = rpc_status_pb2.Status.FromString(raw).details
        stack = "\n".join(line for info in infos for line in _read_debug_info(info))
        return stack, next(filter(None, map(_read_retry_info, infos)), None)
    except (binascii.Error, DecodeError, ValueError):
        return "", None


def _read_debug_info(detail: Any) -> list[str]:
    info = rpc_status_pb2.DebugInfo()
    if not detail.Unpack(info):
        return []
    lines = [*info.stack_entries, info.detail] if info.detail else info.stack_entries
    return [line.decode("utf-8", "replace") for line in lines]


def _read_retry_info(detail: Any) -> int | None:
    """Returns the milliseconds after which the function asks to be called again."""
    info = rpc_status_pb2.RetryInfo()
    return info.retry_delay.ToMilliseconds() if detail.Unpack(info) else None
