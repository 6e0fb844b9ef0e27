"""Sinks that do what the sink images of Numaflow's examples do: print, and answer in all ways.

All take columns. The lines they print begin with the name of their vertex.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pyarrow as pa

from ebbflow.domain.message import Message, RowResponse

_NAMES = ("NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME")

RowResponses = dict[int, RowResponse]
"""The answers for the rows that are not simply written."""

_FALLBACK = RowResponse.fallback()
_ON_SUCCESS = RowResponse.on_success(Message(b"on-success-message", keys=[], metadata={}))
_SUCCESS = RowResponse.on_success()
_FAILURE = RowResponse.failure("this sink fails for every message, so that retries can be seen")


def log(batch: pa.RecordBatch) -> None:
    """Prints every payload; bytes that are no text are shown escaped."""
    _print_payloads(batch)


def log_metadata(batch: pa.RecordBatch) -> None:
    """Prints the metadata of every message."""
    groups = batch.column("metadata").to_pylist()
    _print_lines(f"metadata={_write_metadata(own)}" for own in groups)


def _write_metadata(groups: list[tuple[str, list[tuple[str, bytes]]]] | None) -> str:
    return str({group: dict(entries) for group, entries in groups or ()})


def send_to_fallback(batch: pa.RecordBatch) -> RowResponses:
    """Prints every payload and sends the message to the fallback sink."""
    _print_payloads(batch, "to the fallback sink, ")
    return dict.fromkeys(range(batch.num_rows), _FALLBACK)


def send_to_on_success(batch: pa.RecordBatch) -> RowResponses:
    """Prints every payload and sends a message of its own to the on-success sink."""
    _print_payloads(batch, "to the on-success sink, ")
    return dict.fromkeys(range(batch.num_rows), _ON_SUCCESS)


def send_to_either(batch: pa.RecordBatch) -> RowResponses:
    """Sends every message, by chance, to the on-success sink or to the fallback sink."""
    written = (random.getrandbits(1) for _ in range(batch.num_rows))
    return {row: _SUCCESS if success else _FALLBACK for row, success in enumerate(written)}


def serve(batch: pa.RecordBatch) -> RowResponses:
    """Answers every request with the payload of its message."""
    payloads = batch.column("value").to_pylist()
    return {row: RowResponse.serve(payload) for row, payload in enumerate(payloads)}


def fail(batch: pa.RecordBatch) -> RowResponses:
    """Fails for every message, so that the sink's ``retryStrategy`` can be seen at work."""
    return dict.fromkeys(range(batch.num_rows), _FAILURE)


def panic(batch: pa.RecordBatch) -> None:
    """Raises for every call, as a sink does that ends with its first message."""
    raise RuntimeError(f"this sink takes no message, and it was given {batch.num_rows}")


def _print_payloads(batch: pa.RecordBatch, before: str = "") -> None:
    payloads = batch.column("value").to_pylist()
    _print_lines(before + _write_payload(payload) for payload in payloads)


def _print_lines(lines: Iterable[str]) -> None:
    """Prints all at once, as each print of user code is handed on by itself."""
    names = (os.environ.get(name) for name in _NAMES)
    place = next((f"({name}) " for name in names if name), "")
    print("\n".join(place + line for line in lines))


def _write_payload(payload: bytes) -> str:
    return "payload=" + payload.decode("utf-8", "backslashreplace").replace("\n", "\\n")
