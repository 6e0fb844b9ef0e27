"""Functions that run on Spark with Ebbflow, and in their containers with Numaflow."""

import json

from ebbflow import Datum, Message, Response, nack


def enrich(datum: Datum) -> Message | None:
    """Turns the generator's numbers into orders; some are not known yet, some are nobody's."""
    number = json.loads(datum.value)["value"]
    if number % 10 == 0:
        return None
    if number % 10 == 7 and datum.deliveries == 1:
        nack(delay="1s", max_deliveries=5, reason="customer not known yet")
    return Message(b"order %d" % number, tags=["large"] if number > 1_000 else [])


class Store:
    """Prints orders; those that it cannot take go to the fallback sink."""

    def open(self) -> None:
        """Called once, before the first message."""
        self.taken = 0

    def __call__(self, data: list[Datum]) -> list[Response]:
        return [self._store(datum) for datum in data]

    def _store(self, datum: Datum) -> Response:
        if datum.value.endswith(b"3"):
            return Response.fallback(datum.id)
        self.taken += 1
        print(datum.value.decode(), flush=True)
        return Response.ok(datum.id)

    def close(self) -> None:
        """Called when the container, or the worker, gives up the vertex."""
        print(self.taken, "orders taken", flush=True)
