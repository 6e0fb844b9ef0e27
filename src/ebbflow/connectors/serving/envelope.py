"""What a request says beside its body: one message, whatever its type, with an id of its own."""

from __future__ import annotations

from collections.abc import Iterable

from ebbflow.connectors.http.request import ID, Envelope, check_id, join_headers
from ebbflow.domain.message import make_request_id
from ebbflow.web.refusal import Refusal


class RequestEnvelope(Envelope):
    """The envelope of one request. ``id_header``, in lower case, is where callers name an id."""

    __slots__ = ()

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], now: int, id_header: str) -> None:
        """Reads the headers, in lower case and in their order; ``Refusal`` if they are wrong."""
        headers = join_headers(raw)
        own_id = headers.get(id_header)
        self.id = make_request_id() if own_id is None else check_request_id(own_id, id_header)
        self.has_own_id = own_id is not None
        self.is_batch = False
        self.announced = int(headers.get("content-length", "0"))
        # Answers are stored under this one: nobody may name the id of another request here.
        headers[ID] = self.id
        self._read(headers, now)


def check_request_id(text: str, name: str) -> str:
    """Returns an id that a caller named; ``Refusal`` if it cannot be one."""
    # The ids of all messages that come of a request begin with its own and a slash: user code that
    # replaces the headers leaves nothing else to know the request by.
    if "/" in text:
        raise Refusal(400, f"{name} must not have a slash in it")
    return check_id(text, name)
