"""The run lock: a pipeline has one run at a time on a NATS server, and a second one is refused.

Two runs would lose nothing, because positions fence each other's tasks off, but neither would get
anywhere. A run answers whoever asks whether there is one. A run that was killed does not answer and
is in nobody's way.
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

from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names

_ANSWER_WITHIN = 2.0


@contextmanager
def hold_run_lock(link: Link, names: Names) -> Iterator[None]:
    """Makes this the one run of the pipeline; ``SetupError`` if there is another."""
    other = link.run(find_run(link, names))
    if other is not None:
        raise SetupError(
            f"Pipeline {names.pipeline} is running already: {other}.",
            "Stop that run first, or give this pipeline another name.",
        )
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    this_run = f"process {os.getpid()} on {socket.gethostname()}, since {since}"

    async def answer(message: Msg) -> None:
        await message.respond(this_run.encode())

    subscription = link.run(link.client.subscribe(names.run_subject, cb=answer))
    try:
        link.flush()
        yield
    finally:
        with contextlib.suppress(Exception):
            link.run(subscription.unsubscribe(), timeout=5)


async def find_run(link: Link, names: Names) -> str | None:
    """Returns the words of the run that is there, if one answers."""
    try:
        answer = await link.client.request(names.run_subject, b"", _ANSWER_WITHIN)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None
    return answer.data.decode("utf-8", "replace")
