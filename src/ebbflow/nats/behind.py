"""Reading everything that a stream holds behind a sequence, in bulk and once.

Unlike a ``Follower`` it ends, when it has come to the last message. Half of what is stored never
passes for all of it: whoever reads gets everything, or an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import NANOS, Deliveries, LightConsumer, PullConsumer, PullRequest, Word

_AT_A_TIME = 1_000
_BYTES_AT_A_TIME = 32 * 1024 * 1024
_ANSWER_WITHIN = 10.0
_IDLE_CONSUMER = 30.0


async def read_behind(
    client: SecuredClient, stream: str, subject: str, after: int, *, headers_only: bool = False
) -> AsyncGenerator[Deliveries]:
    """Yields the messages behind a sequence, in order; an empty subject is for all.

    ``JetStreamUnavailable`` when the server stops answering before the end.
    """
    batches: list[Deliveries] = []
    consumer = LightConsumer(stream)
    pull = PullConsumer(client, stream, consumer.name, batches.append)
    await pull.open()
    try:
        facts = await consumer.make(client, subject, after, _IDLE_CONSUMER, headers_only)
        left = int(facts["num_pending"])
        while left:
            # No more than are there: the answer is complete then, and nobody waits for its end.
            request = PullRequest(
                batch=min(left, _AT_A_TIME),
                max_bytes=_BYTES_AT_A_TIME,
                expires=int(_ANSWER_WITHIN / 2 * NANOS),
            )
            status = await pull.fetch(request, silence=_ANSWER_WITHIN)
            if status.word in (Word.SILENCE, Word.GAP):
                raise JetStreamUnavailable(pull.subject, _ANSWER_WITHIN, status.word.value)
            for batch in batches:
                yield batch
            # Also what was stored meanwhile: a message that was moved to the end is met there. With
            # any other word what was left is gone.
            left = batches[-1].pending if status.word is Word.FULL else 0
            batches.clear()
    finally:
        await pull.close()
        await consumer.forget(client)
