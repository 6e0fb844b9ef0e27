"""A store of answers; ids are verbs that say what it is to do."""

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from handlers import add_servicer

from ebbflow.numaflow.proto import store_pb2
from ebbflow.numaflow.server_info import END_MARKER

SOCKETS = Path(os.environ["EBBFLOW_SOCKETS"])


class OddStore:
    def __init__(self) -> None:
        self._answers: defaultdict[str, list[object]] = defaultdict(list)

    def IsReady(self, request: object, context: grpc.ServicerContext) -> object:
        return store_pb2.ReadyResponse(ready=True)

    def Put(self, request: object, context: grpc.ServicerContext) -> object:
        once = Path(os.environ["STATE"])
        match request.id:
            case "refuse":
                return store_pb2.PutResponse(success=False)
            case "exit":
                os._exit(3)
            case "exit-once" if not once.exists():
                once.touch()
                os._exit(3)
        self._answers[request.id] += request.payloads
        return store_pb2.PutResponse(success=True)

    def Get(self, request: object, context: grpc.ServicerContext) -> object:
        payloads = self._answers[request.id]
        if request.id == "origins":
            payloads = [{"value": payload.origin.encode()} for payload in payloads]
        return store_pb2.GetResponse(id=request.id, payloads=payloads)


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    add_servicer(server, OddStore(), "store")
    server.add_insecure_port(f"unix://{SOCKETS}/serving.sock")
    server.start()
    (SOCKETS / "serving-server-info").write_text('{"language": "go"}' + END_MARKER)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
