"""A pynumaflow sink; each value is a verb that says how to answer."""

import json
import os
import sys
from collections.abc import Iterator

from pynumaflow._metadata import UserMetadata
from pynumaflow.sinker import Datum, Message, Response, Responses, SinkServer


def answer(datum: Datum) -> Response:
    verb, _, rest = datum.value.decode().partition(" ")
    match verb:
        case "fail":
            return Response.as_failure(datum.id, rest)
        case "fallback":
            return Response.as_fallback(datum.id)
        case "success":
            return Response.as_on_success(datum.id)
        case "success-as":
            groups = UserMetadata({"group": {"key": b"new"}})
            return Response.as_on_success(datum.id, Message(rest.encode(), ["k"], groups))
        case "success-plain":
            return Response.as_on_success(datum.id, Message(rest.encode()))
        case "describe":
            return Response.as_failure(datum.id, json.dumps(describe(datum)))
        case "raise":
            raise ValueError(rest)
        case "exit":
            os._exit(3)
    return Response.as_success(datum.id)


def describe(datum: Datum) -> dict[str, object]:
    return {
        "id": datum.id,
        "keys": datum.keys,
        "headers": dict(datum.headers),
        "event_time": datum.event_time.timestamp(),
        "watermark": datum.watermark.timestamp(),
        "user": datum.user_metadata.value("group", "key").decode(),
        "retry_count": datum.system_metadata.value("sink", "retry_count").decode(),
        "deliveries": datum.system_metadata.value("ebbflow", "deliveries").decode(),
    }


def sink(data: Iterator[Datum]) -> Responses:
    responses = Responses()
    for datum in data:
        responses.append(answer(datum))
    return responses


if __name__ == "__main__":
    print("sink of pynumaflow", flush=True)
    folder = os.environ["EBBFLOW_SOCKETS"]
    SinkServer(
        sink, sock_path=f"{folder}/sink.sock", server_info_file=f"{folder}/sinker-server-info"
    ).start()
    sys.exit(0)
