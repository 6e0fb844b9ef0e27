"""A store of answers that is served: ``put`` and ``get`` of the user's object."""

from __future__ import annotations

from typing import Any

from ebbflow.numaflow.proto import store_pb2
from ebbflow.numaflow.serve.function import ServedFunction
from ebbflow.numaflow.serve.streams import Fail

_STORED = store_pb2.PutResponse(success=True).SerializeToString()


class ServedStore:
    """The calls of a store. What it raises fails the call, which the runtime repeats."""

    def __init__(self, function: ServedFunction, fail: Fail) -> None:
        self._function = function
        self._fail = fail

    async def put(self, raw: bytes, context: Any) -> bytes:
        """Stores the answers to one request."""
        asked = store_pb2.PutRequest.FromString(raw)
        payloads = [payload.value for payload in asked.payloads]
        await self._try(context, "put", asked.id, payloads)
        return _STORED

    async def get(self, raw: bytes, context: Any) -> bytes:
        """Returns the answers to one request."""
        asked = store_pb2.GetRequest.FromString(raw)
        answers = await self._try(context, "get", asked.id)
        response = store_pb2.GetResponse(
            id=asked.id, payloads=[{"value": answer} for answer in answers]
        )
        return response.SerializeToString()

    async def _try(self, context: Any, *call: Any) -> Any:
        try:
            return await self._function.run(self._function.call, *call)
        except (Exception, SystemExit) as error:
            await self._fail(context, self._function.failure_of(error))
