"""A record that several processes may write: one key of a bucket, replaced by compare-and-set.

Every write names the revision that it replaces, so of two writers who have read the same revision
only one succeeds, and the other hears of it. A write that was sent again after silence may find its
own first copy. An equal record is taken for one's own, so whoever must tell two writers apart names
the writer in the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ebbflow.domain.errors import PermanentPublishError
from ebbflow.nats.bulk import EXPECTED
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import PublishRetry, Tally, publish
from ebbflow.nats.stored import read_one
from ebbflow.streams.names import bucket_stream

# For records that people or the driver write: gives up when NATS is silent for long.
_PATIENT = PublishRetry(attempts=-1, ack_wait=20)
_OTHER_REVISION = 10071
# On a cluster: a write of this subject, perhaps the first copy of this one, is being stored.
_IN_PROCESS = 10164


class Record:
    """The record under one key, as this writer last saw it. Used on the client's loop.

    ``revision`` is that of the record that was read or written last; 0 if there was none.
    """

    def __init__(
        self,
        client: SecuredClient,
        bucket: str,
        key: str,
        retry: PublishRetry = _PATIENT,
        tally: Tally | None = None,
    ) -> None:
        self.revision = 0
        self._client = client
        self._stream = bucket_stream(bucket)
        self._subject = f"$KV.{bucket}.{key}"
        self._retry = retry
        self._tally = tally

    async def read(self) -> bytes | None:
        """Returns what is stored; ``None`` if nothing is. ``ApiError`` if there is no bucket."""
        # From the leader, not by direct get: a follower may lag behind the last write.
        stored = await read_one(self._client, self._stream, last_by_subj=self._subject)
        if stored is None:
            return None
        self.revision = stored.seq
        return stored.payload

    async def replace(self, payload: bytes) -> bool:
        """Stores the payload in place of ``revision``; ``False`` if another has been stored since.

        ``revision`` is then that of the other one.
        """
        while (is_stored := await self._try_replace(payload)) is None:
            await asyncio.sleep(self._retry.wait)
        return is_stored

    async def update(self, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replaces the record by what ``change`` makes of it, and returns it as it is stored.

        ``change`` gets the record again whenever somebody else was faster. It returns ``None`` to
        leave the record as it is.
        """
        while True:
            before = await self.read()
            after = change(before)
            if after is None:
                return before
            if await self.replace(after):
                return after

    async def _try_replace(self, payload: bytes) -> bool | None:
        """Returns whether it is stored; ``None`` while a copy of it may still be stored."""
        replaced = self.revision
        try:
            ack = await publish(
                self._client,
                self._subject,
                payload,
                {EXPECTED: str(replaced)},
                retry=self._retry,
                tally=self._tally,
            )
        except PermanentPublishError as error:
            if error.code not in (_OTHER_REVISION, _IN_PROCESS):
                raise
            # It may have been sent twice and this answer be about the second copy. To take our own
            # for somebody else's would end a healthy task; the other way round two would write.
            if await self.read() == payload:
                return True
            return None if error.code == _IN_PROCESS and self.revision == replaced else False
        self.revision = ack.seq
        return True
