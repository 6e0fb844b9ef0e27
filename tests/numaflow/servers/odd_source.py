"""A source that does what no SDK would do; the first argument says what."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from handlers import add_servicer

from ebbflow.numaflow.proto import source_pb2
from ebbflow.numaflow.server_info import END_MARKER

SOCKETS = Path(os.environ["EBBFLOW_SOCKETS"])
HABIT = sys.argv[1] if len(sys.argv) > 1 else "plain"
VERSION = sys.argv[2] if len(sys.argv) > 2 else "v0.12.0"
EOT = source_pb2.ReadResponse(status={"eot": True})
Result = source_pb2.ReadResponse.Result


def result(number: int, partition: int = 0) -> object:
    name = b"" if HABIT == "no-offset" else b"%d" % number
    return Result(payload=b"x", offset={"offset": name, "partition_id": partition})


class OddSource:
    def __init__(self) -> None:
        self._unacked = 0

    def IsReady(self, request: object, context: grpc.ServicerContext) -> object:
        return source_pb2.ReadyResponse(ready=True)

    def ReadFn(self, requests: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
        assert next(requests).handshake.sot
        yield source_pb2.ReadResponse(handshake={"sot": True})
        given = 0
        for request in requests:
            for response in self._answer(given, request.request.num_records, context):
                given += response.HasField("result")
                yield response

    def _answer(self, given: int, limit: int, context: grpc.ServicerContext) -> Iterator[object]:
        match HABIT:
            case "break" if given >= 7:
                context.abort(grpc.StatusCode.INTERNAL, "UDF_EXECUTION_ERROR(udsource): no more")
            case "failure":
                yield source_pb2.ReadResponse(status={"code": 1, "msg": "the disk is gone"})
                return
            case "waits-for-acks" if self._unacked:
                yield EOT
                return
            case "slow":
                yield source_pb2.ReadResponse(result=result(given))
                threading.Event().wait()
            case "end-with-message":
                time.sleep(0.01)
                yield source_pb2.ReadResponse(result=result(given), status={"eot": True})
                return
            case "partitions":
                for partition in (0, -1, 2**31 - 1):
                    yield source_pb2.ReadResponse(result=result(given, partition))
                yield EOT
                return
        for number in range(given, given + (7 if HABIT in ("break", "waits-for-acks") else limit)):
            self._unacked += 1
            yield source_pb2.ReadResponse(result=result(number))
        yield EOT

    def AckFn(self, requests: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
        assert next(requests).handshake.sot
        yield source_pb2.AckResponse(handshake={"sot": True})
        for request in requests:
            if HABIT == "break-on-ack":
                context.abort(grpc.StatusCode.INTERNAL, "UDF_EXECUTION_ERROR(udsource): unknown")
            if HABIT == "exit-on-ack":
                os._exit(3)
            self._unacked -= len(request.request.offsets)
            yield source_pb2.AckResponse(result={"success": {}})

    def NackFn(self, request: object, context: grpc.ServicerContext) -> object:
        text = "".join(f"{entry!s}\n--\n" for entry in request.request)
        Path(os.environ["RECORD"]).write_text(text, encoding="utf-8")
        return source_pb2.NackResponse(result={"success": {}})

    def PendingFn(self, request: object, context: grpc.ServicerContext) -> object:
        return source_pb2.PendingResponse(result={"count": -1})

    def PartitionsFn(self, request: object, context: grpc.ServicerContext) -> object:
        context.abort(grpc.StatusCode.UNKNOWN, "nobody knows")


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    add_servicer(server, OddSource(), "source")
    server.add_insecure_port(f"unix://{SOCKETS}/source.sock")
    server.start()
    info = f'{{"protocol": "uds", "language": "go", "version": "{VERSION}"}}'
    (SOCKETS / "sourcer-server-info").write_text(info + END_MARKER)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
