"""A plain client on grpcio: one stream to a unary map, that many messages in flight.

python -m benchmarks.workers.grpcio_loop SOCKET MESSAGES SIZE SEED

Prints a line when it begins; then JSON: the seconds it took, and its own seconds of CPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from threading import Semaphore
from typing import Any

import grpc

from benchmarks.work import DISTINCT, payloads
from ebbflow.numaflow.proto import map_pb2

_IN_FLIGHT = 500


def ask(socket: str, messages: int, values: list[bytes]) -> tuple[float, float]:
    """Returns the seconds that all answers took, and those of CPU."""
    free = Semaphore(_IN_FLIGHT)

    def requests() -> Iterator[Any]:
        yield map_pb2.MapRequest(handshake={"sot": True})
        for number in range(messages):
            free.acquire()
            request = {"value": values[number % DISTINCT]}
            yield map_pb2.MapRequest(id=str(number), request=request)

    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.stream_stream(
            "/map.v1.Map/MapFn",
            map_pb2.MapRequest.SerializeToString,
            map_pb2.MapResponse.FromString,
        )
        answers = call(requests())
        next(answers)
        print("begins", flush=True)
        began, used = time.monotonic(), time.process_time()
        for _ in range(messages):
            assert next(answers).results
            free.release()
        return time.monotonic() - began, time.process_time() - used


if __name__ == "__main__":
    place, many, size, seed = sys.argv[1], *map(int, sys.argv[2:])
    took, cpu = ask(place, many, payloads(size, seed))
    print(json.dumps({"seconds": took, "cpu": cpu}))
