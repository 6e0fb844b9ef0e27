"""Headers of messages that come from NATS and go there: a message's own, and its keys.

NATS knows no keys, so they travel in a header: what a sink has written a source reads back.
Headers that begin with ``Nats-`` tell JetStream what to do with the message that has them, and
those of a message that came from one stream are not meant for the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

KEYS = "Ebbflow-Keys"
"""The keys of a message, as a JSON list."""

SUBJECT = "Nats-Subject"
"""Where a message was published to."""

_RESERVED = "nats-"


def incoming(subject: str, headers: Mapping[str, str] | None) -> tuple[list[str], dict[str, str]]:
    """Returns the keys and headers of a message that has come; the subject is a header too."""
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


def outgoing(keys: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a message takes along."""
    kept = {
        name: value for name, value in headers.items() if not name.lower().startswith(_RESERVED)
    }
    return kept | ({KEYS: json.dumps(list(keys))} if keys else {})
