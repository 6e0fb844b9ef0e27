"""The two sides on which a function can run: in the worker's process, and over gRPC.

Either way it becomes an operator of a vertex, by the same names and handlers that a plan has.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ebbflow.engine.verdict import Operator
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote import RemoteMap, RemoteSink, RemoteStore
from ebbflow.numaflow.remote_source import RemoteSource
from ebbflow.usercode import calling
from ebbflow.usercode.calling import Handler
from ebbflow.usercode.sinks import Store
from tests.numaflow.served import serving

SIZE = 500

_REMOTE: dict[str, Callable[..., Any]] = {
    "udf": RemoteMap,
    "transformer": RemoteMap,
    "udsink": RemoteSink,
    "fb-udsink": RemoteSink,
    "ons-udsink": RemoteSink,
    "udsource": RemoteSource,
    "udstore": RemoteStore,
}


class Side:
    """Opens functions, and closes all of them at the end.

    ``tries`` is how often a message on which a function breaks is given to it in one delivery.
    """

    tries = 1

    def __init__(self) -> None:
        self.opened = ExitStack()
        self.handlers: list[Handler] = []

    def operator(self, code: Any, kind: str) -> Operator:
        """The operator of a function of that kind."""
        raise NotImplementedError

    def open(self, code: Any) -> Handler:
        handler = Handler(code)
        self.opened.callback(handler.close)
        self.handlers.append(handler)
        return handler

    def store(self, code: Any) -> Store:
        """A store of answers."""
        handler = self.open(self.source(code, "store"))
        return Store(handler.instance.put, handler.blame)

    def source(self, code: Any, kind: str = "source") -> Any:
        """The code of a source, or of a store, as a plan has it."""
        raise NotImplementedError

    def renew(self) -> None:
        """What a vertex does before the next chunk, if a system was down."""
        for handler in self.handlers:
            if handler.blame.outage is not None:
                handler.renew()


class InProcess(Side):
    """User code is called where the vertex is."""

    def operator(self, code: Any, kind: str) -> Operator:
        handler = self.open(code)
        match kind:
            case "map" | "transformer":
                return partial(calling.call_map, handler, concurrency=SIZE)
            case "batch-map":
                return partial(calling.run_batch_map, handler, batch_size=SIZE)
            case "stream-map":
                return partial(calling.run_stream, handler)
        return partial(calling.call_sink, handler, batch_size=SIZE)

    def source(self, code: Any, kind: str = "source") -> Any:
        return code


class OverGrpc(Side):
    """User code is served as ``ebbflow serve-udf`` does, and called by the runtime's side."""

    tries = 2

    def operator(self, code: Any, kind: str) -> Operator:
        plan = self.serve(code, kind)
        handler = self.open(partial(_REMOTE[plan.container], plan))
        run = calling.run_columnar_sink if kind.endswith("sink") else calling.run_columnar
        return partial(run, handler, batch_size=SIZE, pandas=False)

    def source(self, code: Any, kind: str = "source") -> Any:
        plan = self.serve(code, kind)
        return partial(_REMOTE[plan.container], plan)

    def serve(self, code: Any, kind: str) -> FunctionPlan:
        folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory()))
        served = self.opened.enter_context(serving(code, kind, folder, again=True))
        return FunctionPlan(served.kind.container, folder=str(folder))


SIDES = {"in process": InProcess, "over gRPC": OverGrpc}
