"""The end of a stream on which a function has failed: status, text and the function's stack.

The text begins as with Numaflow's SDKs, which its runtime shows to people. The status is INTERNAL
when the function raised on a message, and UNAVAILABLE when a system that it needs is away: then no
message is to blame. The stack travels as ``google.rpc.DebugInfo``, a wish to wait as
``google.rpc.RetryInfo``, in ``grpc-status-details-bin`` as gRPC has it.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import grpc

from ebbflow.engine.redelivery import describe
from ebbflow.engine.system_errors import retry_after

_STATUS = "grpc-status-details-bin"
_TYPES = "type.googleapis.com/google.rpc."
# Trailers beyond 8 KB are refused by many clients; the end of a stack is where the error is.
_LONGEST_TEXT, _LONGEST_STACK = 1_000, 4_000


@dataclass(frozen=True, slots=True)
class FunctionFailure:
    """The failure of a function. ``wait`` is in milliseconds, if the function named one."""

    text: str
    stack: str
    away: bool = False
    wait: int | None = None

    @classmethod
    def of(cls, container: str, error: BaseException, away: bool = False) -> FunctionFailure:
        """Returns the failure that an exception is; ``away`` if it is a system's."""
        stack = "".join(traceback.format_exception(error))
        text = f"UDF_EXECUTION_ERROR({container}): {describe(error)}"
        return cls(text, stack, away, retry_after(error) if away else None)

    @classmethod
    def of_outage(cls, container: str, what: str, wait: int | None) -> FunctionFailure:
        """Returns the failure of a system of which no exception is at hand."""
        return cls(f"UDF_EXECUTION_ERROR({container}): {what}", "", True, wait)

    @property
    def code(self) -> grpc.StatusCode:
        """The status of the stream."""
        return grpc.StatusCode.UNAVAILABLE if self.away else grpc.StatusCode.INTERNAL

    @property
    def details(self) -> str:
        """The text of the status."""
        return self.text[:_LONGEST_TEXT]

    @property
    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """The trailers of the stream: the status once more, with stack and wait."""
        parts = [_varint_field(1, self.code.value[0]), _bytes_field(2, self.details.encode())]
        if self.stack:
            stack = self.stack.encode("utf-8", "replace")[-_LONGEST_STACK:]
            parts.append(_detail("DebugInfo", _bytes_field(2, stack)))
        if self.wait is not None:
            seconds, rest = divmod(self.wait, 1_000)
            wait = _varint_field(1, seconds) + _varint_field(2, rest * 1_000_000)
            parts.append(_detail("RetryInfo", _bytes_field(1, wait)))
        return ((_STATUS, b"".join(parts)),)


def _detail(name: str, message: bytes) -> bytes:
    packed = _bytes_field(1, f"{_TYPES}{name}".encode()) + _bytes_field(2, message)
    return _bytes_field(3, packed)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
