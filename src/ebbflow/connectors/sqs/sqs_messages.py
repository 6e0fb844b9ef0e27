"""Messages in SQS: bodies are text, and a message has at most ten attributes.

A value that a body cannot hold is written as base64, an empty one as ``-``; the attribute
``ebbflow.encoding`` says which. Headers become attributes of the same names. If there are too many,
or one cannot be an attribute, all headers become one JSON object in ``ebbflow.headers``. Keys
become a JSON list in ``ebbflow.keys``; in a FIFO queue a single key becomes the group instead.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from ebbflow.connectors.leases import LeasedMessage
from ebbflow.domain.message import Datum
from ebbflow.domain.user_source import SourceMessage

ENCODING, KEYS, HEADERS = "ebbflow.encoding", "ebbflow.keys", "ebbflow.headers"
GROUP, COPY_OF, DELAY = "MessageGroupId", "MessageDeduplicationId", "DelaySeconds"
METADATA = "sqs"
"""The metadata group with a message's attributes, and with the fields that a sink sets."""

_OWN = 2  # attributes for the encoding and the keys
_MOST_ATTRIBUTES = 10
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!ebbflow\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_UNFIT = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_ID = 128
_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")


def _fits(text: str) -> bool:
    return bool(text) and _UNFIT.search(text) is None


# --- writing ------------------------------------------------------------------------------------


def write_entry(number: int, datum: Datum, is_fifo: bool) -> dict[str, Any]:
    """Returns a message as an entry of a batch, with its number as its id."""
    body, encoding = _write_body(datum.value)
    keys = list(datum.keys)
    group = _find_field(datum, GROUP) if is_fifo else None
    is_in_group = is_fifo and group is None and len(keys) == 1 and _ID.fullmatch(keys[0])
    texts = _write_headers(datum.headers)
    if encoding:
        texts[ENCODING] = encoding
    if keys and not is_in_group:
        texts[KEYS] = json.dumps(keys)
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": body}
    if texts:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": text} for name, text in texts.items()
        }
    if is_fifo:
        entry[GROUP] = group or _id_of(":".join(keys) or "-")
        entry[COPY_OF] = _find_field(datum, COPY_OF) or _id_of(datum.id)
    elif delay := _find_field(datum, DELAY):
        entry[DELAY] = int(delay)
    return entry


def _find_field(datum: Datum, name: str) -> str | None:
    """Returns the value of an SQS field from metadata or headers, as in Numaflow."""
    written = datum.metadata.get(METADATA, {}).get(name)
    return written.decode() if written else datum.headers.get(name) or None


def _id_of(text: str) -> str:
    """Returns a valid SQS id for a text, always the same one for the same text."""
    if _ID.fullmatch(text):
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _write_body(value: bytes) -> tuple[str, str | None]:
    if not value:
        return "-", "empty"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return (text, None) if _fits(text) else (base64.b64encode(value).decode(), "base64")


def _write_headers(headers: Mapping[str, str]) -> dict[str, str]:
    fit = len(headers) <= _MOST_ATTRIBUTES - _OWN
    if fit and all(_NAME.fullmatch(name) and _fits(text) for name, text in headers.items()):
        return dict(headers)
    return {HEADERS: json.dumps(dict(headers))} if headers else {}


def entry_size(entry: Mapping[str, Any]) -> int:
    """Returns the bytes of an entry, as SQS counts them: its body and its attributes."""
    attributes: Mapping[str, Mapping[str, str]] = entry.get("MessageAttributes", {})
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len("String") + len(attribute["StringValue"].encode())
        for name, attribute in attributes.items()
    )


# --- reading ------------------------------------------------------------------------------------


def read_raw(
    raw: Mapping[str, Any], attributes: Sequence[str], message_attributes: Sequence[str]
) -> LeasedMessage:
    """Returns a leased message; the SQS system attributes in ``attributes`` become headers."""
    own: Mapping[str, str] = raw.get("Attributes", {})
    found = {
        name: _attribute(attribute) for name, attribute in raw.get("MessageAttributes", {}).items()
    }
    wanted = {name: found[name] for name in found if not name.startswith("ebbflow.")}
    headers = {name: text for name, text in wanted.items() if isinstance(text, str)}
    headers |= _read_json(found.get(HEADERS), dict)
    headers |= {name: own[name] for name in own if name in attributes or "All" in attributes}
    keys = _read_json(found.get(KEYS), list)
    if not keys and GROUP in own:
        keys = [own[GROUP]]
    metadata = {METADATA: {name: _bytes(value) for name, value in wanted.items()}}
    sent = own.get("SentTimestamp", "")
    message = SourceMessage(
        _read_body(raw["Body"], found.get(ENCODING)),
        raw["MessageId"].encode(),
        datetime.fromtimestamp(int(sent) / 1000, UTC) if sent.isdecimal() else None,
        keys,
        headers,
        # The same in all processes: a queue has no partitions.
        partition=0,
        metadata=metadata if message_attributes and wanted else None,
    )
    return LeasedMessage(raw["ReceiptHandle"], message)


def _attribute(attribute: Mapping[str, Any]) -> str | bytes:
    value: str | bytes = attribute.get("StringValue") or attribute.get("BinaryValue") or ""
    return value


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _read_json(text: str | bytes | None, kind: type[Any]) -> Any:
    """Returns a list or an object of texts; an empty one if the text is something else."""
    try:
        found = json.loads(text) if text else kind()
    except (ValueError, RecursionError):
        return kind()
    texts = found.values() if isinstance(found, dict) else found
    fits = isinstance(found, kind) and all(isinstance(each, str) for each in texts)
    return found if fits else kind()


def _read_body(body: str, encoding: str | bytes | None) -> bytes:
    if encoding == "empty":
        return b""
    if encoding == "base64":
        with suppress(ValueError):  # others may have written that it is
            return base64.b64decode(body, validate=True)
    return body.encode()
