"""The parameters in the address of a request."""

from __future__ import annotations

from urllib.parse import parse_qsl

from ebbflow.web.connection import RequestHead
from ebbflow.web.refusal import Refusal


def read_query(head: RequestHead) -> dict[str, str]:
    """Returns the parameters of the address; ``Refusal`` if there is one twice."""
    text = head.target.partition(b"?")[2].decode("latin-1")
    pairs = parse_qsl(text, keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise Refusal(400, "a parameter is there twice")
    return query
