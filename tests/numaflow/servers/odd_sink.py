"""A sink that does what no SDK would do; each value is a verb that says what."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from handlers import add_servicer

from ebbflow.numaflow.proto import sink_pb2
from ebbflow.numaflow.server_info import END_MARKER

SOCKETS = Path(os.environ["EBBFLOW_SOCKETS"])
EOT = sink_pb2.SinkResponse(status={"eot": True})

Result = sink_pb2.SinkResponse.Result


class OddSink:
    def IsReady(self, request: object, context: grpc.ServicerContext) -> object:
        return sink_pb2.ReadyResponse(ready=True)

    def SinkFn(self, requests: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
        assert next(requests).handshake.sot
        yield sink_pb2.SinkResponse(handshake={"sot": True})
        batch: list[object] = []
        for request in requests:
            if not request.status.eot:
                batch.append(request.request)
                continue
            for datum in batch:
                yield from answer(datum, batch, context)
            yield EOT
            if any(datum.value == b"late" for datum in batch):
                yield sink_pb2.SinkResponse(results=[Result(id=batch[0].id)])
            batch = []


def answer(datum: object, batch: list[object], context: grpc.ServicerContext) -> Iterator[object]:
    """Yields the responses for one message, each with a single result."""
    verb, _, rest = datum.value.decode().partition(" ")
    results = [Result(id=datum.id)]
    match verb:
        case "skip":
            results = []
        case "twice":
            results *= 2
        case "stranger":
            results = [Result(id="nobody")]
        case "status":
            results = [Result(id=datum.id, status=int(rest))]
        case "serve":
            results = [Result(id=datum.id, status=sink_pb2.SERVE, serve_response=rest.encode())]
        case "serve-itself":
            results = [Result(id=datum.id, status=sink_pb2.SERVE)]
        case "nack":
            delay, most, reason = rest.split(" ", 2)
            options = {"delay": int(delay), "max_deliveries": int(most), "reason": reason}
            results = [Result(id=datum.id, status=sink_pb2.NACK, nack_options=options)]
        case "nack-plain":
            results = [Result(id=datum.id, status=sink_pb2.NACK)]
        case "break":
            context.abort(grpc.StatusCode.INTERNAL, f"UDF_EXECUTION_ERROR(udsink): {rest}")
        case "break-in-company" if len(batch) > 1:
            context.abort(grpc.StatusCode.INTERNAL, "UDF_EXECUTION_ERROR(udsink): company")
        case "away":
            context.abort(grpc.StatusCode.UNAVAILABLE, f"UDF_EXECUTION_ERROR(udsink): {rest}")
        case "end":
            context.cancel()
        case "exit":
            os._exit(3)
        case "hang":
            threading.Event().wait()
    return (sink_pb2.SinkResponse(results=[result]) for result in results)


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "sink"
    server = grpc.server(ThreadPoolExecutor(8))
    add_servicer(server, OddSink(), "sink")
    server.add_insecure_port(f"unix://{SOCKETS}/{kind}.sock")
    server.start()
    info = '{"protocol": "uds", "language": "go", "version": "v0.12.0"}'
    (SOCKETS / f"{kind}er-server-info").write_text(info + END_MARKER)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
