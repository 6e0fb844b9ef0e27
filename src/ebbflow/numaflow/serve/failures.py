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
from ebbflow.numaflow.proto import rpc_status_pb2

_STATUS = "grpc-status-details-bin"
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
        status = rpc_status_pb2.Status(code=self.code.value[0], message=self.details)
        if self.stack:
            stack = self.stack.encode("utf-8", "replace")[-_LONGEST_STACK:]
            status.details.add().Pack(rpc_status_pb2.DebugInfo(detail=stack))
        if self.wait is not None:
            info = rpc_status_pb2.RetryInfo()
            info.retry_delay.FromMilliseconds(self.wait)
            status.details.add().Pack(info)
        return ((_STATUS, status.SerializeToString()),)
