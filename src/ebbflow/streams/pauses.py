"""The record of what is paused, in the bucket of positions: changed by compare-and-set.

Two people who pause at once both have their way: whose write finds another revision reads the
record again and changes that.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ebbflow.domain.errors import PermanentPublishError
from ebbflow.engine.pauses import Pauses
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import PublishRetry, publish
from ebbflow.nats.stored import read_one
from ebbflow.streams.names import Names
from ebbflow.streams.streams import explain_unknown

_WRONG_REVISION = frozenset({10071, 10164})
_PATIENT = PublishRetry(attempts=-1, ack_wait=20)


async def read_pauses(client: SecuredClient, names: Names) -> Pauses:
    """Returns what is paused now; ``SetupError`` if there is no such pipeline."""
    stream = f"KV_{names.positions}"
    try:
        # From the leader: a follower may lag behind, and a task would take messages once more.
        record = await read_one(client, stream, last_by_subj=names.pauses_subject)
    except api.ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        existing = await api.list_streams(client, "ebb_")
        raise explain_unknown(names.pipeline, existing) from None
    return Pauses() if record is None else Pauses.from_json(record.payload, record.seq)


async def change_pauses(
    client: SecuredClient, names: Names, change: Callable[[Pauses], Pauses]
) -> Pauses:
    """Changes what is paused, and returns it as it is stored."""
    while True:
        before = await read_pauses(client, names)
        after = change(before)
        if after == before:
            return before
        payload = json.dumps(after.to_json()).encode()
        expected = {"Nats-Expected-Last-Subject-Sequence": str(before.revision)}
        try:
            ack = await publish(client, names.pauses_subject, payload, expected, retry=_PATIENT)
        except PermanentPublishError as error:
            if error.code not in _WRONG_REVISION:
                raise
            continue
        return Pauses.from_json(payload, ack.seq)
