"""Values that JSON does not know, in the one shape that all of Ebbflow's JSON gives them."""

from __future__ import annotations

import base64


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Returns bytes for JSON: as text, or ``{"base64": …}`` if they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
