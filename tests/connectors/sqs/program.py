"""Moto's server: python -m tests.connectors.sqs.program PORT

Moto receives and deletes without a lock: it returns the same messages to two calls at once, and a
deletion brings back what another one deletes meanwhile. Here one call receives or deletes at a
time; a long poll receives repeatedly.

Moto counts the whole queue for each message that it receives, to see whether the message is too
old; reads the clock for each message that it counts, through several datetimes; and answers with
Nagle's algorithm, which can delay an answer by 40 ms. Here it does none of these.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from moto.server import main
from moto.sqs import models
from moto.sqs.models import Queue, SQSBackend
from werkzeug.serving import WSGIRequestHandler

_EVERY = 0.02
_lock = threading.Lock()
_receive: Any = SQSBackend.receive_message
_delete: Any = Queue.delete_message


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


def delete_alone(queue: Any, receipt_handle: str) -> None:
    with _lock:
        _delete(queue, receipt_handle)


def milliseconds() -> float:
    return time.time() * 1000


def is_young(backend: Any, queue_name: str, message: Any) -> bool:
    return True


if __name__ == "__main__":
    models.unix_time_millis = milliseconds
    SQSBackend.receive_message = receive_alone
    SQSBackend.is_message_valid_based_on_retention_period = is_young
    Queue.delete_message = delete_alone
    WSGIRequestHandler.disable_nagle_algorithm = True
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
