"""Moto's server: python -m tests.connectors.sqs.program PORT

Moto receives without a lock, and returns the same messages to two calls at once. Here one call
receives at a time; a long poll receives repeatedly.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from moto.server import main
from moto.sqs.models import SQSBackend

_EVERY = 0.02
_lock = threading.Lock()
_receive: Any = SQSBackend.receive_message


def receive_alone(
    backend: Any, queue_name: str, count: int, wait_seconds_timeout: int, *more: Any, **named: Any
) -> list[Any]:
    deadline = time.monotonic() + wait_seconds_timeout
    while True:
        with _lock:
            found: list[Any] = _receive(backend, queue_name, count, 0, *more, **named)
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(_EVERY)


if __name__ == "__main__":
    SQSBackend.receive_message = receive_alone
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
