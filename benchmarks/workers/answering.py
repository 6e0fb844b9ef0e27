"""What people answer requests with instead: FastAPI on uvicorn, and a worker behind NATS.

python -m benchmarks.workers.answering PORT direct
python -m benchmarks.workers.answering PORT nats
python -m benchmarks.workers.answering worker

``direct`` calls the function in the endpoint. ``nats`` sends a request and waits for the reply of
``worker``, which calls the same function. Nothing is stored on the way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from nats.aio.msg import Msg

from benchmarks.work import work
from benchmarks.workers import connected

PATH = "/ask"
_SUBJECT = "bench.ask"
_PATIENCE = 30.0


def direct() -> FastAPI:
    """The function in the endpoint."""
    app = FastAPI()

    @app.post(PATH)
    async def ask(request: Request) -> Response:
        return Response(work(await request.body()), media_type="application/octet-stream")

    return app


def behind_nats() -> FastAPI:
    """The function in a worker, which is called over NATS."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.nats = await connected()
        yield
        await app.state.nats.close()

    app = FastAPI(lifespan=lifespan)

    @app.post(PATH)
    async def ask(request: Request) -> Response:
        nats = request.app.state.nats
        reply = await nats.request(_SUBJECT, await request.body(), timeout=_PATIENCE)
        return Response(reply.data, media_type="application/octet-stream")

    return app


async def work_for_others() -> None:
    """Replies until killed."""
    client = await connected()

    async def reply(message: Msg) -> None:
        await message.respond(work(message.data))

    await client.subscribe(_SUBJECT, cb=reply)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(work_for_others())
    else:
        app = direct() if sys.argv[2] == "direct" else behind_nats()
        uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
