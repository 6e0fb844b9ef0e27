"""The work that every contestant does for a message: the same small change, in every form."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow import Datum, Message, Response

DISTINCT = 2_000


def payloads(size: int, seed: int) -> list[bytes]:
    """Values that do not compress, the same for the same seed: compression gives no advantage."""
    chance = Random(seed)
    return [chance.randbytes(size) for _ in range(DISTINCT)]


def numbered(messages: int, size: int, seed: int) -> Iterator[bytes]:
    """Texts that do not compress, each with its number in front, to see which have arrived."""
    texts = [b64encode(value)[8:size].lower() for value in payloads(size, seed)]
    return (b"%08d%b" % (number, texts[number % DISTINCT]) for number in range(messages))


def objects(messages: int, size: int, seed: int) -> Iterator[bytes]:
    """JSON objects, each with its number, a text that does not compress, and an amount."""
    texts = [b64encode(value)[: max(1, size - 50)] for value in payloads(size, seed)]
    return (
        b'{"id":%d,"name":"%b","amount":%d.25}' % (n, texts[n % DISTINCT], n % 1_000)
        for n in range(messages)
    )


def work(payload: bytes) -> bytes:
    """A small change to the payload."""
    return payload + b"!"


def each(datum: Datum) -> Message:
    """Message by message."""
    return Message(work(datum.value))


def batch(data: list[Datum]) -> dict[str, Message]:
    """A list of messages at a time."""
    return {datum.id: Message(work(datum.value)) for datum in data}


def columnar(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A table of messages at a time."""
    changed = pc.binary_join_element_wise(rows.column("value"), b"!", b"")
    return pa.RecordBatch.from_arrays([changed], names=["value"])


def upper(datum: Datum) -> Message:
    """The change to numbered texts, message by message."""
    return Message(datum.value.upper())


def write(data: list[Datum]) -> list[Response]:
    """A sink that looks at every value and accepts it."""
    return [Response.ok(datum.id) for datum in data if work(datum.value)]


def accept(rows: pa.RecordBatch) -> None:
    """The same sink on columns: no response means that all is well."""
    pc.binary_join_element_wise(rows.column("value"), b"!", b"")


CHANGES: dict[str, Callable[[bytes], bytes]] = {"work": work, "upper": bytes.upper}
MAPS: dict[str, Callable[..., Any]] = {"unary": each, "batch": batch, "columnar": columnar}
