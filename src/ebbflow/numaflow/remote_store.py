"""Stores of answers in processes of their own, called as a store of the user's is.

A store that breaks is opened anew and asked once more; if it breaks again, the message whose answer
it was is to blame. One that says that it has not stored an answer is away.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ebbflow.domain.errors import Unavailable
from ebbflow.numaflow.breaks import ask_all
from ebbflow.numaflow.function import FunctionPlan, FunctionProcess
from ebbflow.numaflow.proto import store_pb2
from ebbflow.numaflow.session import Service, Session

STORE_SERVICE = Service("serving.v1.ServingStore", (), b"", b"")

_ROW = 0


class RemoteStore:
    """The code of a store that runs as a function of its own."""

    def __init__(self, plan: FunctionPlan) -> None:
        self._name = plan.name
        self._origin = os.environ.get("NUMAFLOW_VERTEX_NAME", "")
        self._session = Session(FunctionProcess(plan), STORE_SERVICE)

    def open(self) -> None:
        """Starts the function; ``Unavailable`` if that cannot be done."""
        self._session.open()

    def close(self) -> None:
        """Ends the function."""
        self._session.close()

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request; raises if the store has not taken them."""
        answers = [{"origin": self._origin, "value": payload} for payload in payloads]
        request = store_pb2.PutRequest(id=id, payloads=answers)
        answer = self._ask("Put", request.SerializeToString())
        if not store_pb2.PutResponse.FromString(answer).success:
            raise Unavailable(f"the store {self._name}: it did not store an answer")

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for one that is not known."""
        answer = self._ask("Get", store_pb2.GetRequest(id=id).SerializeToString())
        return [said.value for said in store_pb2.GetResponse.FromString(answer).payloads]

    def _ask(self, name: str, request: bytes) -> bytes:
        if not self._session.is_open:
            self._session.reopen()
        call = StoreCall(self._session, name, request)
        error = ask_all(self._session, call, [_ROW]).get(_ROW)
        if error is not None:
            raise error
        assert call.answer is not None, "one that is not answered has an error"
        return call.answer


class StoreCall:
    """One call. ``Asking``: its only row is the answer to a request."""

    def __init__(self, session: Session, name: str, request: bytes) -> None:
        self.answer: bytes | None = None
        self._session = session
        self._name = name
        self._request = request

    def ask(self, rows: Sequence[int]) -> None:
        """As in ``Asking``."""
        self.answer = self._session.call(self._name, self._request)

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """As in ``Asking``."""
        return list(rows)
