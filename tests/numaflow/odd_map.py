"""A map, or a transformer, on a grpcio server of this process, that does what messages tell it.

A message is a verb, with more behind it if need be; any other is passed on in upper case.
"""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from ebbflow.numaflow.decode import DROP, FAIL, NACK
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.proto import map_pb2, sourcetransform_pb2
from ebbflow.numaflow.server_info import END_MARKER, ServerInfo, info_path, socket_path
from tests.numaflow.servers.handlers import add_servicer

ERROR = "UDF_EXECUTION_ERROR(udf): boom"


class OddMap:
    """``seen`` counts how often each message was sent, ``most`` those that waited together."""

    def __init__(self, folder: Path, mode: str = "unary-map", language: str = "python") -> None:
        self.folder, self.mode, self.language = folder, mode, language
        self.seen: Counter[str] = Counter()
        self.batches: list[int] = []
        self.waiting = self.most = 0
        self.ends_with_each_batch = self.leaves_out_ids = False

    @property
    def plan(self) -> FunctionPlan:
        return FunctionPlan("udf", folder=str(self.folder))

    def start(self) -> None:
        info = ServerInfo(language=self.language, metadata={"MAP_MODE": self.mode})
        facts = {"language": info.language, "metadata": info.metadata}
        info_path(self.folder, "udf").write_text(json.dumps(facts) + END_MARKER)
        self._over = threading.Event()
        self._threads = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads)
        self.add_to(self._server)
        self._server.add_insecure_port(f"unix:{self.socket(info)}")
        self._server.start()

    def add_to(self, server: grpc.Server) -> None:
        add_servicer(server, self, "map")

    def socket(self, info: ServerInfo) -> Path:
        return socket_path(self.folder, "udf", info)

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._over.set()
        self._threads.shutdown()

    def IsReady(self, request, context):
        return map_pb2.ReadyResponse(ready=True)

    def MapFn(self, requests, context):
        assert next(requests).handshake.sot
        yield map_pb2.MapResponse(handshake={"sot": True})
        modes = {"unary-map": self.map, "batch-map": self.map_batches, "stream-map": self.stream}
        yield from modes[self.mode](requests, context)

    # --- one at a time ------------------------------------------------------------------------

    def map(self, requests, context) -> Iterator[map_pb2.MapResponse]:
        late: list[map_pb2.MapResponse] = []
        for request in requests:
            verb = self._note(request)
            if verb == "silent":
                continue
            if verb == "hang":
                self._over.wait()
            if verb == "close":
                return
            answers = list(self._answers(request, verb, context))
            if verb == "late":
                late += answers
                continue
            yield from (*answers, *late)
            late = []

    def _note(self, request) -> str:
        verb = request.request.value.decode()
        self.seen[verb] += 1
        if verb == "stop":
            threading.Thread(target=self.stop).start()
            self._over.wait()
        return verb

    def _answers(self, request, verb: str, context) -> Iterator[map_pb2.MapResponse]:
        if verb.startswith("raise"):
            context.abort(grpc.StatusCode.INTERNAL, ERROR)
        if verb.startswith("away"):
            context.abort(grpc.StatusCode.UNAVAILABLE, ERROR)
        name = "nobody" if verb == "unknown" else request.id
        response = map_pb2.MapResponse(id=name, results=self._results(request, verb))
        yield from [response] * (2 if verb == "twice" else 1)

    def _results(self, request, verb: str) -> list[dict[str, object]]:
        given = request.request
        match verb.split():
            case ["none"]:
                return []
            case ["drop"]:
                return [{"tags": [DROP]}]
            case ["fail", *reason]:
                return [{"tags": [FAIL], "nack_options": {"reason": " ".join(reason)}}]
            case ["nack"]:
                options = {"delay": 500, "max_deliveries": 0, "reason": "busy"}
                return [{"value": b"beside"}, {"tags": [NACK], "nack_options": options}]
            case ["many", *parts]:
                return [{"value": part.encode(), "tags": [part]} for part in parts]
            case ["metadata", group, key]:
                groups = {group: {"key_value": {key: b"new"}}}
                return [{"value": b"", "keys": ["new"], "metadata": {"user_metadata": groups}}]
            case ["tell"]:
                return [{"value": _describe(given).encode()}]
        return [{"value": given.value.upper()}]

    # --- batches ------------------------------------------------------------------------------

    def map_batches(self, requests, context) -> Iterator[map_pb2.MapResponse]:
        batch: list[map_pb2.MapRequest] = []
        for request in requests:
            if not request.status.eot:
                batch.append(request)
                continue
            self.batches.append(len(batch))
            for one in reversed(batch):
                verb = self._note(one)
                if verb != "silent":
                    yield from self._answers(one, verb, context)
            yield map_pb2.MapResponse(status={"eot": True})
            batch = []
            if self.ends_with_each_batch:
                return

    # --- outputs one by one -------------------------------------------------------------------

    def stream(self, requests, context) -> Iterator[map_pb2.MapResponse]:
        for request in requests:
            verb = self._note(request)
            name = "" if self.leaves_out_ids else request.id
            if verb == "half":  # as SDKs do when the function fails after its first output
                yield map_pb2.MapResponse(id=name, results=[{"value": b"half"}])
                yield map_pb2.MapResponse(id=name, status={"eot": True})
                context.abort(grpc.StatusCode.INTERNAL, ERROR)
            for response in self._answers(request, verb, context):
                for result in response.results:
                    yield map_pb2.MapResponse(id=name, results=[result])
            yield map_pb2.MapResponse(id=name, status={"eot": True})


class Gathering(OddMap):
    """Answers when ``count`` messages wait, or none comes for a moment; all in reverse."""

    count = 4

    def map(self, requests, context) -> Iterator[map_pb2.MapResponse]:
        waiting: list[map_pb2.MapRequest] = []
        arrived = self._read_beside(requests)
        while not self._over.is_set():
            waiting += arrived[len(waiting) + self.seen.total() :]
            self.most = max(self.most, len(waiting))
            if len(waiting) == self.count:
                for request in reversed(waiting):
                    self._note(request)
                    yield from self._answers(request, "x", context)
                waiting = []
            time.sleep(0.001)

    def _read_beside(self, requests) -> list[map_pb2.MapRequest]:
        arrived: list[map_pb2.MapRequest] = []

        def read() -> None:
            with contextlib.suppress(grpc.RpcError):  # the end of the call
                arrived.extend(requests)

        threading.Thread(target=read, daemon=True).start()
        return arrived


class OddTransformer(OddMap):
    """The same as a transformer; ``time N`` sets the event time to N seconds after 1970."""

    @property
    def plan(self) -> FunctionPlan:
        return FunctionPlan("transformer", folder=str(self.folder))

    def start(self) -> None:
        info_path(self.folder, "transformer").write_text("{}" + END_MARKER)
        super().start()

    def add_to(self, server: grpc.Server) -> None:
        add_servicer(server, self, "sourcetransform")

    def socket(self, info: ServerInfo) -> Path:
        return socket_path(self.folder, "transformer", info)

    def SourceTransformFn(self, requests, context):
        assert next(requests).handshake.sot
        yield sourcetransform_pb2.SourceTransformResponse(handshake={"sot": True})
        for message in requests:
            given = message.request
            result: dict[str, object] = {"value": given.value, "event_time": given.event_time}
            match given.value.decode().split():
                case ["time", seconds]:
                    result["event_time"] = {"seconds": int(seconds)}
                case ["nack", seconds]:
                    result |= {"event_time": {"seconds": int(seconds)}, "tags": [NACK]}
                case ["tell"]:
                    result["value"] = _describe(given).encode()
            yield sourcetransform_pb2.SourceTransformResponse(id=given.id, results=[result])


def _describe(given) -> str:
    """What a function receives about a message."""
    system = given.metadata.sys_metadata
    facts = {
        "keys": list(given.keys),
        "headers": dict(given.headers),
        "event_time": given.event_time.ToJsonString(),
        "watermark": given.watermark.ToJsonString(),
        "metadata": {
            group: {key: value.decode() for key, value in entries.key_value.items()}
            for group, entries in given.metadata.user_metadata.items()
        },
        "deliveries": system["ebbflow"].key_value["deliveries"].decode(),
    }
    return json.dumps(facts)
