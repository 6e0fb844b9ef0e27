"""Converts messages from and to NATS: keys, headers, subjects and ids.

NATS has no keys, so a sink writes them into a header and a source reads them back. Headers that
begin with ``Nats-`` are instructions to JetStream, so those received from one stream are not sent
to the next.

A message keeps its id whenever the sink gets it again, so JetStream stores it once. A pipeline that
was started from scratch uses different ids.

This module also opens the connections to users' own servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import nats.errors
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import AccessError, MessageTooLarge, SetupError
from ebbflow.domain.message import Response
from ebbflow.engine.position import LINEAGE
from ebbflow.nats import wire
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link, connect
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import Outgoing, check_size
from ebbflow.nats.wire import Parcel, Publishes

KEYS = "Ebbflow-Keys"
"""The keys of a message, as a JSON list."""

SUBJECT = "Nats-Subject"
"""The header with the subject that a message was published to."""

HEADERS = pa.map_(pa.string(), pa.string())
_RESERVED = "nats-"
_ID_ALONE = b"NATS/1.0\r\nNats-Msg-Id: %b/%b\r\n\r\n"
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def read_keys_and_headers(
    subject: str, headers: Mapping[str, str] | None
) -> tuple[list[str], dict[str, str]]:
    """Returns the keys and headers of a received message; its subject is a header, too."""
    own = dict(headers or {})
    keys = _keys(own.get(KEYS, ""))
    if keys:
        del own[KEYS]
    return keys, own | {SUBJECT: subject}


def _keys(text: str) -> list[str]:
    try:
        keys = json.loads(text)
    except ValueError:
        return []
    fit = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    return keys if fit else []


def to_source_columns(parcel: Parcel) -> dict[str, pa.Array]:
    """Returns values, keys and headers of received messages, as a source's columns."""
    keys: list[list[str] | None] = [None] * len(parcel)
    subjects = pa.array(parcel.subjects, pa.binary()).cast(pa.string())
    rows = parcel.rows_with_headers()
    if not rows:
        headers = _only_subjects(subjects)
    else:
        pairs = [[(SUBJECT, subject)] for subject in subjects.to_pylist()]
        for row in rows:
            keys[row], own = read_keys_and_headers(pairs[row][0][1], parcel.headers(row))
            pairs[row] = list(own.items())
        headers = pa.array(pairs, HEADERS)
    return {
        "value": parcel.payloads(),
        "keys": pa.array(keys, pa.list_(pa.string())),
        "headers": headers,
    }


def _only_subjects(subjects: pa.StringArray) -> pa.MapArray:
    """Returns headers with nothing but the subject."""
    names = pa.repeat(pa.scalar(SUBJECT), len(subjects))
    return pa.MapArray.from_arrays(pa.array(range(len(subjects) + 1), pa.int32()), names, subjects)


def write_keys_and_headers(keys: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers to publish with a message."""
    kept = {
        name: value for name, value in headers.items() if not name.lower().startswith(_RESERVED)
    }
    return kept | ({KEYS: json.dumps(list(keys))} if keys else {})


@dataclass(frozen=True, slots=True)
class Outbound:
    """The messages of a sink's rows, and the rows that NATS can never take, with the reason.

    ``rows`` has the row of each message.
    """

    messages: Publishes
    rows: Sequence[int]
    refused: Mapping[int, str] = field(default_factory=dict)

    def answer(self, failures: Mapping[int, Response]) -> dict[int, Response] | None:
        """Returns the sink's responses; ``failures`` has those for messages, by number."""
        responses = {row: Response.failure(error=why) for row, why in self.refused.items()}
        responses |= {self.rows[number]: response for number, response in failures.items()}
        return responses or None


def _carry_nothing(rows: pa.RecordBatch) -> bool:
    """Returns whether no row has keys or a header to publish."""
    keys, headers = rows.column("keys"), rows.column("headers")
    if pc.any(pc.greater(pc.list_value_length(keys), 0)).as_py():
        return False
    names = pc.unique(headers.keys).to_pylist() if headers.null_count < len(headers) else []
    return all(name.lower().startswith(_RESERVED) for name in names)


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """A server and a subject to publish to. Times in seconds."""

    server: Addresses
    subject: str | None
    subject_header: str | None
    ack_wait: float

    def outgoing(self, rows: pa.RecordBatch, largest: int) -> Outbound:
        """Returns the messages to send, and the rows that NATS can never take."""
        if self.subject_header is None and _carry_nothing(rows):
            return self._without_headers(rows, largest)
        return self._one_by_one(rows, largest)

    def _without_headers(self, rows: pa.RecordBatch, largest: int) -> Outbound:
        """Handles the usual case: one subject for all, and no header but the id."""
        lineage = os.environ.get(LINEAGE, "").encode()
        ids = rows.column("id").cast(pa.binary()).to_pylist()
        values = rows.column("value").to_pylist()
        assert self.subject is not None
        blocks = [_ID_ALONE % (lineage, row_id) for row_id in ids]
        longest = max(map(len, blocks), default=0) + max(map(len, values), default=0)
        if longest > largest or _CONTROL.search(b"".join(ids)):
            return self._one_by_one(rows, largest)
        subjects = [self.subject.encode()] * len(ids)
        return Outbound(Publishes(subjects, blocks, values), range(len(ids)))

    def _one_by_one(self, rows: pa.RecordBatch, largest: int) -> Outbound:
        lineage = os.environ.get(LINEAGE, "")
        messages: list[Outgoing] = []
        kept: list[int] = []
        refused: dict[int, str] = {}
        columns = (rows.column(name).to_pylist() for name in ("id", "value", "keys", "headers"))
        for row, (row_id, value, keys, pairs) in enumerate(zip(*columns, strict=True)):
            headers = dict(pairs or ())
            try:
                own = write_keys_and_headers(keys or (), headers)
                message = Outgoing(self._subject(headers), value, own, f"{lineage}/{row_id}")
                check_size(largest, message.data, wire.write_headers(message.headers or {}))
            except (ValueError, MessageTooLarge) as error:
                refused[row] = str(error)
            else:
                messages.append(message)
                kept.append(row)
        return Outbound(
            Publishes.of((m.subject, m.headers, m.data) for m in messages), kept, refused
        )

    def _subject(self, headers: Mapping[str, str]) -> str:
        own = headers.get(self.subject_header) if self.subject_header else None
        subject = own or self.subject
        if subject is None:
            raise ValueError(f"it has no header {self.subject_header}, and there is no subject")
        return subject


_LEAVE = 5.0


def outside_link(server: Addresses, what: str) -> Link:
    """Returns a link; an error names ``what`` it is for, as in "source in"."""
    try:
        return Link(server)
    except SetupError as error:
        raise _unreached(error, what) from None


def renew_link(link: Link, what: str) -> Link:
    """Returns the link, or a new one if the server has ended it for good."""
    if link.client.ended is None:
        return link
    link.close()
    return outside_link(link.server, what)


async def outside_client(server: Addresses, what: str) -> SecuredClient:
    """Returns a connection on the running loop."""
    try:
        return await connect(server, "ebbflow")
    except SetupError as error:
        raise _unreached(error, what) from None


async def leave(client: SecuredClient) -> None:
    """Closes a connection in any state."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), _LEAVE)


def _unreached(error: SetupError, what: str) -> SetupError:
    step = f"Check that it is up, and that url, auth and tls of the {what} are right."
    return SetupError(error.what, step)


def not_allowed(error: AccessError) -> SetupError:
    """Returns the error for a permission that a user's own server denies."""
    return SetupError(error.what, "Allow it there; the guide on NATS lists what is needed.")
