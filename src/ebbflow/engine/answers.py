"""Answers of sinks: the key under which each is stored, and the order of a request's answers.

The key of an answer is ``<request>.<vertex>.<message>.<number>``: the request's id as one part of
a key, the sink, a hash of the id of the message that was answered for, and the number of the answer
among those of that message. So several messages of a request can have answers, a replay after a
crash writes the same entry again, and nothing else in a bucket has a key of four parts.

The answers to a request are in the order in which maps yielded their messages, whenever they were
stored. The order follows from the message ids, which answers carry as a header.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from json.encoder import encode_basestring_ascii
from typing import Any

MESSAGE_ID = "Ebbflow-Id"
"""The header of an answer with the id of the message it answers for, as in a dead letter."""

_LONGEST_KEY = 200
_SAFE_KEY = re.compile(rf"[-/_=a-zA-Z0-9]{{1,{_LONGEST_KEY}}}")
# At most as many digits as every int() accepts: an id may be of any length.
_DIGITS = re.compile(r"([0-9]{1,18})")
_STEP = re.compile(r"(.*)\.([0-9]{1,18})", re.DOTALL)

Order = tuple[Any, ...]
"""The sort key of an answer among those to its request: lower comes first."""


def answer_key(request: str) -> str:
    """Returns the request's id as one part of a key; different ids stay different."""
    if _SAFE_KEY.fullmatch(request) and not request.startswith("="):
        return request
    encoded = base64.urlsafe_b64encode(request.encode()).decode()
    if len(encoded) <= _LONGEST_KEY:
        return "=" + encoded
    # A subject must stay short; the hash is as unique as the id, but cannot be read.
    return "==" + hashlib.blake2b(request.encode(), digest_size=32).hexdigest()


def key_pattern(request: str | None) -> str:
    """Returns the pattern of the keys of all answers in a bucket, or of those to one request."""
    return f"{'*' if request is None else answer_key(request)}.*.*.*"


def request_of(token: str) -> str:
    """Returns the id of the request from which ``answer_key`` made this part of a key.

    If the id was too long for a key, only its hash is known and is returned.
    """
    if not token.startswith("=") or token.startswith("=="):
        return token
    return base64.urlsafe_b64decode(token[1:]).decode()


def answer_headers(message: str) -> dict[str, str]:
    """Returns the headers of an answer; ``message`` is the id of the message it answers for."""
    return {MESSAGE_ID: encode_basestring_ascii(message)}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a request, as it is stored. Made by Ebbflow, and read-only.

    ``token`` is the request's id as a part of a key; ``name`` is the rest of the key, which no
    other answer to the request has. ``message`` is the id of the message that was answered for.
    ``arrived`` counts up as answers are stored in the bucket, and ``stored`` is when that was. For
    an answer in your own store, only the payload and its number there are known.
    """

    token: str
    name: str
    message: str
    payload: bytes
    arrived: int
    stored: datetime | None = None

    @property
    def request(self) -> str:
        """The id of the request; of one that is too long for a key, its hash."""
        return request_of(self.token)

    @property
    def vertex(self) -> str:
        """The sink that answered."""
        return self.name.rpartition(".")[0].partition(".")[0]

    @property
    def number(self) -> int:
        """The number of the answer among those of its message, from 0."""
        return int(self.name.rpartition(".")[2])

    @property
    def order(self) -> Order:
        """The sort key among the answers to the request: lower comes first."""
        return (*path_order(self.message), self.vertex, self.number)


def read_answer(
    key: str,
    headers: Mapping[str, str],
    payload: bytes,
    arrived: int,
    stored: datetime | None = None,
) -> Answer | None:
    """Returns the answer that an entry of a bucket holds.

    ``None`` for an entry that is not an answer: the mark of a deletion, or another program's entry.
    """
    if MESSAGE_ID not in headers:
        return None
    token, _, name = key.partition(".")
    return Answer(token, name, json.loads(headers[MESSAGE_ID]), payload, arrived, stored)


def own_answers(request: str, payloads: Iterable[bytes]) -> list[Answer]:
    """Returns the answers that the user's own store has for a request, in its order."""
    token = answer_key(request)
    return [Answer(token, str(n), "", payload, n) for n, payload in enumerate(payloads)]


def path_order(message: str) -> Order:
    """Returns the sort key of a message id, which puts messages in the order maps yielded them.

    An id is the path of the message: its source's id and the steps, ``in-12/split.3/enrich``. After
    a common path the next step decides, by its name and then by its number.
    """
    root, *steps = message.split("/")
    # Texts and numbers alternate, so that equal positions hold comparable values.
    parts = [int(p) if n % 2 else p for n, p in enumerate(_DIGITS.split(root))]
    return (tuple(parts), tuple(map(_step_order, steps)))


def _step_order(step: str) -> tuple[str, int]:
    numbered = _STEP.fullmatch(step)
    return (numbered[1], int(numbered[2])) if numbered else (step, 0)
