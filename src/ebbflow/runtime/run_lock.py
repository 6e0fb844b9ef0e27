"""One run of a pipeline at a time: a second one on the same NATS server is refused with a sentence.

Two would not lose anything, for positions fence each other's tasks off, but they would get nowhere.
The run that is there answers whoever asks; one that was killed does not, and is in nobody's way.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg

from ebbflow.buffers.names import Names
from ebbflow.errors import SetupError
from ebbflow.nats.link import Link

_ANSWER_WITHIN = 2.0


@contextmanager
def alone(link: Link, names: Names) -> Iterator[None]:
    """Be the pipeline's one run while the context lasts; ``SetupError`` if there is another."""
    other = link.run(_other_run(link, names))
    if other is not None:
        raise SetupError(
            f"Pipeline {names.pipeline} is running already: {other}.",
            "Stop that run first, or give this pipeline another name.",
        )
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    me = f"process {os.getpid()} on {socket.gethostname()}, since {since}"

    async def answer(message: Msg) -> None:
        await message.respond(me.encode())

    subscription = link.run(link.client.subscribe(names.run_subject, cb=answer))
    try:
        link.flush()
        yield
    finally:
        # Whoever asks next must not be answered by a run that has failed.
        with contextlib.suppress(Exception):
            link.run(subscription.unsubscribe(), timeout=5)


async def _other_run(link: Link, names: Names) -> str | None:
    try:
        answer = await link.client.request(names.run_subject, b"", _ANSWER_WITHIN)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None
    return answer.data.decode("utf-8", "replace")
