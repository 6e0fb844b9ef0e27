"""Replies as messages of the protocol: results of maps and transformers, answers of sinks.

What a message does not say it has from its input: keys, metadata and event time are sent back as
they came, because Numaflow takes what is left out for nothing. A nack or a failure is one result
with a reserved tag, alone: none of its siblings is forwarded. The error of a failure travels as
the reason of its options; Numaflow, which knows no such error, leaves it unread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ebbflow.domain.message import Message
from ebbflow.engine.outputs import AnyOutputs
from ebbflow.numaflow.nack_options import write_options
from ebbflow.numaflow.proto import map_pb2, metadata_pb2, nack_options_pb2, sink_pb2
from ebbflow.numaflow.proto import sourcetransform_pb2 as transform_pb2
from ebbflow.numaflow.responses import DROP, FAIL, NACK
from ebbflow.numaflow.serve.replies import Output, Replies, list_outputs
from ebbflow.numaflow.serve.requests import EPOCH, Request

# A response may have 64 MB; answers that are served can be large.
_MOST_BYTES = 16 * 1024 * 1024
_MICROSECOND = EPOCH.resolution


class MapResults:
    """Makes the responses of a map."""

    _response: Any = map_pb2.MapResponse

    def responses(self, reply: Replies) -> Iterator[bytes]:
        """Yields a response for each request that the function has answered."""
        results = self._gather(reply)
        for index, request in enumerate(reply.requests):
            if index not in reply.errors and index not in reply.away:
                yield self._pack(request.id, results.get(index, []))

    def pieces(self, requests: Sequence[Request], outputs: AnyOutputs | None) -> list[bytes]:
        """Returns a response for each output, as a stream map sends them."""
        return [
            self._pack(requests[out.parent].id, [self._result(requests[out.parent], out)])
            for out in list_outputs(outputs)
        ]

    def _gather(self, reply: Replies) -> Mapping[int, list[Any]]:
        results: defaultdict[int, list[Any]] = defaultdict(list)
        for out in list_outputs(reply.outputs):
            results[out.parent].append(self._result(reply.requests[out.parent], out))
        for index, options in reply.nacked.items():
            wish = None if options is None else write_options(options)
            results[index] = [self._declined(reply, index, NACK, wish)]
        for index, failure in reply.decisions.failed.items():
            reason = nack_options_pb2.NackOptions(reason=failure.error)
            results[index] = [self._declined(reply, index, FAIL, reason)]
        for index in reply.dropped:
            results[index] = self._dropped(reply, index)
        return results

    def _pack(self, id: str, results: list[Any]) -> bytes:
        packed: bytes = self._response(id=id, results=results).SerializeToString()
        return packed

    def _result(self, request: Request, out: Output) -> Any:
        return self._response.Result(
            keys=request.message.keys if out.keys is None else out.keys,
            value=out.value,
            tags=out.tags,
            metadata=_metadata_of(request, out.metadata),
            **self._timed(request, out.event_time),
        )

    def _declined(
        self,
        reply: Replies,
        index: int,
        tag: str,
        options: nack_options_pb2.NackOptions | None,
    ) -> Any:
        time = self._timed(reply.requests[index], reply.times.get(index))
        return self._response.Result(tags=[tag], nack_options=options, **time)

    def _dropped(self, reply: Replies, index: int) -> list[Any]:
        return []

    def _timed(self, request: Request, own: datetime | None) -> dict[str, Any]:
        """Returns the field of the event time, if results have one."""
        return {}


class TransformResults(MapResults):
    """Makes the responses of a transformer, of which every result has an event time.

    A drop is a result as well: Numaflow takes an empty list for a fault, and its event time counts.
    """

    _response = transform_pb2.SourceTransformResponse

    def _dropped(self, reply: Replies, index: int) -> list[Any]:
        return [self._declined(reply, index, DROP, None)]

    def _timed(self, request: Request, own: datetime | None) -> dict[str, Any]:
        return {"event_time": request.message.event_time if own is None else write_time(own)}


def sink_responses(reply: Replies) -> Iterator[bytes]:
    """Yields the answers of a sink, many in one response."""
    response, size = sink_pb2.SinkResponse(), 0
    for index, request in enumerate(reply.requests):
        if index in reply.errors or index in reply.away:
            continue
        result = _sink_result(reply, index, request)
        response.results.append(result)
        size += result.ByteSize()
        if size > _MOST_BYTES:
            yield response.SerializeToString()
            response, size = sink_pb2.SinkResponse(), 0
    if response.results:
        yield response.SerializeToString()


def _sink_result(reply: Replies, index: int, request: Request) -> sink_pb2.SinkResponse.Result:
    result = sink_pb2.SinkResponse.Result(id=request.id)
    decisions = reply.decisions
    if index in reply.nacked:
        result.status = sink_pb2.NACK
        if (options := reply.nacked[index]) is not None:
            result.nack_options.CopyFrom(write_options(options))
    elif index in decisions.failed:
        result.status, result.err_msg = sink_pb2.FAILURE, decisions.failed[index].error
    elif index in decisions.fallback:
        result.status = sink_pb2.FALLBACK
    elif index in decisions.served:
        result.status, result.serve_response = sink_pb2.SERVE, decisions.served[index]
    elif index in decisions.on_success:
        result.status = sink_pb2.ON_SUCCESS
        if (message := decisions.on_success[index]) is not None:
            result.on_success_msg.CopyFrom(_handed_on(request, message))
    return result


def _handed_on(request: Request, message: Message) -> sink_pb2.SinkResponse.Result.Message:
    return sink_pb2.SinkResponse.Result.Message(
        value=message.value,
        keys=request.message.keys if message.keys is None else message.keys,
        metadata=_metadata_of(request, message.metadata),
    )


def write_time(time: datetime) -> dict[str, int]:
    """Returns a time as the fields of a timestamp, to the microsecond."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    seconds, rest = divmod((aware - EPOCH) // _MICROSECOND, 1_000_000)
    return {"seconds": seconds, "nanos": rest * 1_000}


def write_metadata(metadata: Mapping[str, Mapping[str, bytes]]) -> metadata_pb2.Metadata:
    """Returns metadata of the user's as the protocol has it."""
    groups = {
        group: metadata_pb2.KeyValueGroup(key_value=entries) for group, entries in metadata.items()
    }
    return metadata_pb2.Metadata(user_metadata=groups)


def _metadata_of(
    request: Request, own: Mapping[str, Mapping[str, bytes]] | None
) -> metadata_pb2.Metadata | None:
    if own is not None:
        return write_metadata(own)
    if not request.message.HasField("metadata"):
        return None
    return metadata_pb2.Metadata(user_metadata=request.message.metadata.user_metadata)
