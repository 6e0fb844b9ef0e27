"""Functions served in a thread of the test, and gRPC's own client to call them."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from ebbflow.numaflow.proto import map_pb2, sink_pb2, source_pb2
from ebbflow.numaflow.proto import sourcetransform_pb2 as transform_pb2
from ebbflow.numaflow.serve.function_server import FunctionServer, Serving
from ebbflow.numaflow.serve.messages import FunctionFailure
from ebbflow.numaflow.services import SERVICES
from tests.waiting import until

LARGE = [("grpc.max_send_message_length", 2**26), ("grpc.max_receive_message_length", 2**26)]


class Served:
    """A function behind its socket, in a thread of this process.

    With ``again`` it is started again after a failure, as Kubernetes does with a container.
    """

    def __init__(
        self, code: Any, kind: str, folder: Path, mode: str | None = None, again: bool = False
    ) -> None:
        self.kind = SERVICES[kind]
        self.folder = folder
        chosen: Any = mode or (self.kind.modes[0] if self.kind.modes else None)
        self._serving = Serving(code, self.kind, chosen, folder, "out", 5.0)
        self.server = FunctionServer(self._serving)
        self.failure: FunctionFailure | None = None
        self._again = again
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.failure = self.server.run()
        while self._again and self.failure is not None:
            self.server = FunctionServer(self._serving)
            self.failure = self.server.run()

    def start(self) -> "Served":
        """Waits until the server-info file is there, or the function could not be opened."""
        self._thread.start()
        until(lambda: not self._thread.is_alive() or self.info_file.exists())
        return self

    @property
    def info_file(self) -> Path:
        return self.kind.info_path(self.folder)

    @property
    def info(self) -> dict[str, Any]:
        text, mark, rest = self.info_file.read_text().partition("U+005C__END__")
        assert mark, "the server-info file must end with its mark"
        assert not rest
        return json.loads(text)

    def wait(self) -> FunctionFailure | None:
        """Waits until the server has ended; returns the function's failure."""
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.failure

    def stop(self) -> None:
        self._again = False
        if self._thread.is_alive():
            self.server.end()
        self.wait()


@contextmanager
def serving(
    code: Any, kind: str, folder: Path, mode: str | None = None, again: bool = False
) -> Iterator[Served]:
    """Serves the code for as long as the context lasts."""
    served = Served(code, kind, folder, mode, again).start()
    try:
        yield served
    finally:
        served.stop()


class Client:
    """A runtime's side of the protocol, by grpcio."""

    def __init__(self, served: Served) -> None:
        path = served.kind.socket_path(served.folder)
        self.channel = grpc.insecure_channel(f"unix://{path}", options=LARGE)

    def close(self) -> None:
        self.channel.close()

    def call(self, method: str, request: bytes = b"") -> bytes:
        return self.channel.unary_unary(method)(request, timeout=120)

    def stream(self, method: str, requests: Iterable[bytes]) -> Iterator[bytes]:
        return self.channel.stream_stream(method)(iter(requests), timeout=120)


@contextmanager
def client_of(served: Served) -> Iterator[Client]:
    """A client that is closed at the end: an open channel would hold up the server's end."""
    client = Client(served)
    try:
        yield client
    finally:
        client.close()


def until_broken(responses: Iterable[bytes]) -> tuple[list[bytes], Any]:
    """All responses before the stream breaks, and the error."""
    received: list[bytes] = []
    try:
        for response in responses:
            received.append(response)
    except grpc.RpcError as error:
        return received, error
    raise AssertionError("the stream has ended well")


def map_requests(*messages: dict[str, Any], end: bool = False) -> Iterator[bytes]:
    """A handshake, a request for each message, and the end mark of a batch."""
    yield map_pb2.MapRequest(handshake={"sot": True}).SerializeToString()
    for number, message in enumerate(messages):
        yield map_pb2.MapRequest(id=f"m{number}", request=message).SerializeToString()
    if end:
        yield map_pb2.MapRequest(status={"eot": True}).SerializeToString()


def transform_requests(*messages: dict[str, Any]) -> Iterator[bytes]:
    """A handshake and a request for each message."""
    yield transform_pb2.SourceTransformRequest(handshake={"sot": True}).SerializeToString()
    for number, message in enumerate(messages):
        request = {"id": f"m{number}", **message}
        yield transform_pb2.SourceTransformRequest(request=request).SerializeToString()


def sink_requests(*messages: dict[str, Any]) -> Iterator[bytes]:
    """A handshake, a request for each message, and the end mark of the batch."""
    yield sink_pb2.SinkRequest(handshake={"sot": True}).SerializeToString()
    for number, message in enumerate(messages):
        yield sink_pb2.SinkRequest(request={"id": f"m{number}", **message}).SerializeToString()
    yield sink_pb2.SinkRequest(status={"eot": True}).SerializeToString()


def values(*texts: str) -> list[dict[str, Any]]:
    return [{"value": text.encode()} for text in texts]


def read_requests(limit: int, times: int = 1) -> Iterator[bytes]:
    """A handshake and that many reads."""
    yield source_pb2.ReadRequest(handshake={"sot": True}).SerializeToString()
    for _ in range(times):
        request = {"num_records": limit, "timeout_in_ms": 50}
        yield source_pb2.ReadRequest(request=request).SerializeToString()


def ack_requests(*offsets: bytes) -> Iterator[bytes]:
    """A handshake and one acknowledgement."""
    yield source_pb2.AckRequest(handshake={"sot": True}).SerializeToString()
    request = {"offsets": [{"offset": offset} for offset in offsets]}
    yield source_pb2.AckRequest(request=request).SerializeToString()
