"""A bare endpoint on the web server that HTTP sources use: it reads a post and answers at once.

python -m benchmarks.workers.endpoint PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"15")],
}
_BODY = {"type": "http.response.body", "body": b'{"status":"ok"}'}


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers a request when all of it has come."""
    while (await receive()).get("more_body"):
        pass
    await send(_HEAD)
    await send(_BODY)


if __name__ == "__main__":
    uvicorn.run(
        application, port=int(sys.argv[1]), lifespan="off", ws="none", log_config=None,
        access_log=False,
    )  # fmt: skip
