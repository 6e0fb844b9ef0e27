"""One reader per pipeline, however many viewers it has."""

import asyncio
from datetime import UTC, datetime

import pytest

from ebbflow.status.model import PipelineStatus
from ebbflow.ui.pipelines import StatusFollower


class Reads:
    """A pipeline whose state changes with each read."""

    def __init__(self) -> None:
        self.number = 0
        self.error: Exception | None = None

    async def __call__(self) -> PipelineStatus:
        self.number += 1
        if self.error is not None:
            raise self.error
        return PipelineStatus("p", at=datetime.fromtimestamp(self.number, UTC))


def follower_of(reads: Reads) -> StatusFollower:
    describe = lambda error: str(error).encode()  # noqa: E731
    return StatusFollower(reads, describe, every=0.01, at_rest=0.01, linger=0.05)


async def take(events, count: int) -> list[bytes]:
    return [await anext(events) for _ in range(count)]


@pytest.mark.guarantee("pages-hold-up-nothing")
def test_a_hundred_viewers_cost_no_more_reads_than_one():
    async def scenario() -> None:
        reads = Reads()
        follower = follower_of(reads)
        viewers = [follower.watch() for _ in range(100)]
        seen = await asyncio.gather(*(take(viewer, 5) for viewer in viewers))
        assert reads.number <= 6
        assert len({tuple(events) for events in seen}) == 1
        follower.stop()

    asyncio.run(scenario())


@pytest.mark.guarantee("pages-hold-up-nothing")
def test_a_slow_viewer_gets_the_latest_state_and_delays_no_other():
    async def scenario() -> None:
        reads = Reads()
        follower = follower_of(reads)
        slow, quick = follower.watch(), follower.watch()
        first = await anext(slow)
        await take(quick, 20)
        assert await anext(slow) != first
        assert (await anext(slow)).count(b"event:") == 1
        follower.stop()

    asyncio.run(scenario())


def test_it_stops_reading_without_viewers_and_reads_again_for_the_next_one():
    async def scenario() -> None:
        reads = Reads()
        follower = follower_of(reads)
        viewer = follower.watch()
        await take(viewer, 3)
        await viewer.aclose()
        await asyncio.wait_for(follower._reading, 5)
        before = reads.number
        status = await follower.get()
        assert (reads.number, status.at.second) == (before + 1, before + 1)
        follower.stop()

    asyncio.run(scenario())


def test_a_failed_read_is_reported_and_ends_no_stream():
    async def scenario() -> None:
        reads = Reads()
        reads.error = ValueError("away")
        follower = follower_of(reads)
        viewer = follower.watch()
        assert await anext(viewer) == b"event: problem\ndata: away\n\n"
        with pytest.raises(ValueError, match="away"):
            await follower.get()
        reads.error = None
        events = await take(viewer, 3)
        assert events[-1].startswith(b"event: status\n")
        follower.stop()

    asyncio.run(scenario())
