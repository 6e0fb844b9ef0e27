"""The taps on a task: whoever wants to see what passes it, and what they are sent.

A wish comes as a word on the control subject and holds for some seconds; who taps repeats it. While
there is none, a chunk costs one look at an empty dictionary. Rows go out over plain NATS and
nothing waits for them: what the connection does not take at once is counted as not shown. A tap
that fails is taken off; the task goes on.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ebbflow.engine.publications import Place
from ebbflow.engine.tapping import PassingRows, TappedRow, TapWish
from ebbflow.engine.verdict import Verdict
from ebbflow.nats.link import Link
from ebbflow.runtime.journal import Clock
from ebbflow.streams.names import Names

_TAP, _UNTAP = b"tap ", b"untap "
_LARGEST = 500_000


def ask_tap(wish: TapWish) -> bytes:
    """Returns the word that has tasks of the vertex show what passes."""
    return _TAP + wish.to_json()


def end_tap(token: str) -> bytes:
    """Returns the word that ends a tap before its time is over."""
    return _UNTAP + token.encode()


@dataclass
class Tap:
    """One wish, until when it holds, and what may still be shown in the present second."""

    wish: TapWish
    until: float
    second: float
    left: int
    skipped: int = 0


class Taps:
    """The taps on one task. Wishes come from the link's thread, rows from the task's.

    ``known`` are those that the earlier epochs of the task have left.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        place: Place,
        clock: Clock,
        known: dict[str, Tap],
    ) -> None:
        self._link = link
        self._names = names
        self._place = place
        self._clock = clock
        self._taps = known
        self._chance = Random()  # noqa: S311 - chooses samples, protects nothing
        self._sending: concurrent.futures.Future[None] | None = None

    def hear(self, word: bytes) -> None:
        """Takes a wish, or the end of one, if that is what the word says."""
        if word.startswith(_UNTAP):
            self._taps.pop(word.removeprefix(_UNTAP).decode(), None)
        elif word.startswith(_TAP):
            wish = TapWish.from_json(word.removeprefix(_TAP))
            if wish.vertex == self._place.vertex:
                self._take(wish)

    def _take(self, wish: TapWish) -> None:
        now = self._clock.monotonic()
        tap = self._taps.get(wish.token)
        if tap is None:
            self._taps[wish.token] = Tap(wish, now + wish.seconds, now, wish.rate)
        else:
            tap.until = now + wish.seconds

    def show(self, verdict: Verdict, is_part: bool = False) -> None:
        """Sends what somebody wants to see of a chunk that is decided about; never raises."""
        if not self._taps:
            return
        # From the batch, not from the lists that user code was shown and may have changed.
        batch, now = verdict.rows.batch, self._clock.now()
        rows = PassingRows(batch, self._place, now, verdict, is_part=is_part)
        for token, tap in list(self._taps.items()):
            try:
                if self._clock.monotonic() > tap.until:
                    raise TimeoutError
                self._send(tap, rows)
            except Exception:  # nobody's tap is worth a task
                self._taps.pop(token, None)

    def _send(self, tap: Tap, rows: PassingRows) -> None:
        now = self._clock.monotonic()
        if now - tap.second >= 1:
            tap.second, tap.left = now, tap.wish.rate
        # Nobody waits for a slow connection: what comes while rows are on their way is not shown.
        busy = self._sending is not None and not self._sending.done()
        shown, skipped = rows.choose(tap.wish, 0 if busy else tap.left, self._chance)
        tap.left -= len(shown)
        tap.skipped += skipped
        if shown:
            subject, skipped, tap.skipped = self._names.tap_subject(tap.wish.token), tap.skipped, 0
            self._sending = self._link.submit(self._publish(subject, pack_rows(shown, skipped)))

    async def _publish(self, subject: str, parts: Sequence[bytes]) -> None:
        for part in parts:
            await self._link.client.publish(subject, part)


def pack_rows(rows: Sequence[TappedRow], skipped: int) -> list[bytes]:
    """Returns rows as messages that are not too large; the first tells what was not shown."""
    parts: list[bytes] = []
    texts: list[str] = []
    size = 0

    def close() -> None:
        told = 0 if parts else skipped
        parts.append(f'{{"skipped": {told}, "rows": [{", ".join(texts)}]}}'.encode())

    for text in map(json.dumps, rows):
        if texts and size + len(text) > _LARGEST:
            close()
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    close()
    return parts
