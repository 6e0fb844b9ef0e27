"""Work that a request begins and that may outlast it, as the replay of many dead letters.

A job continues when its browser is closed. Who began it is answered at once if it ends soon;
otherwise with its number, by which its progress is asked for until it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ebbflow.ui.app import explain_failure, read_number
from ebbflow.web.app import HttpReply
from ebbflow.web.exchange import Refusal, too_many

_THREADS = 4
_MOST_WAITING = 16
_KEPT = 100
_LARGEST_NUMBER = 10**15 - 1

Progress = Callable[[Any], None]
"""Is told how far a job is, as what JSON can hold; raises ``JobStopped`` if it is to end."""


class JobStopped(Exception):
    """Ends a job that someone has stopped."""


@dataclass(slots=True)
class Job:
    """One piece of work. ``result`` is there when it has ended well, ``failure`` otherwise."""

    number: int
    owner: str
    progress: Any = None
    result: Any = None
    failure: Refusal | None = None
    has_ended: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """Returns how far it is."""
        facts: dict[str, Any] = {"job": self.number, "done": self.has_ended}
        facts |= {"progress": self.progress, "result": self.result}
        if self.failure is not None:
            facts |= {"error": self.failure.reason, "next_step": self.failure.next_step}
        return facts

    def note(self, progress: Any) -> None:
        """Hears how far it is; raises if it is to end."""
        self.progress = progress
        if self.stop.is_set():
            raise JobStopped


class Jobs:
    """The jobs of one web UI; ``owner`` is the pipeline that a job is about. Used on one loop."""

    reply_within = 3.0
    """A job that takes longer than this many seconds is answered with its number."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "web-ui-job")
        self._numbers = count(1)
        self._jobs: dict[int, Job] = {}

    async def run(self, owner: str, work: Callable[[Progress], Any]) -> HttpReply:
        """Begins a job; returns its result, or its number if it takes longer."""
        if sum(not job.has_ended for job in self._jobs.values()) >= _MOST_WAITING:
            raise too_many("too many jobs are under way")
        job = self._remember(Job(next(self._numbers), owner))
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, _carry_out, job, work)
        await asyncio.wait([future], timeout=self.reply_within)
        if not job.has_ended:
            return HttpReply.json(job.describe(), 202)
        if job.failure is not None:
            raise job.failure
        return HttpReply.json(job.result)

    def find(self, owner: str, number: str) -> Job:
        """Returns a job of a pipeline; ``Refusal`` if there is none of this number."""
        job = self._jobs.get(read_number(number, "the number of a job", _LARGEST_NUMBER))
        if job is None or job.owner != owner:
            raise Refusal(404, f"there is no job {number}")
        return job

    def close(self) -> None:
        """Stops all jobs; each can be done again, and continues where it was."""
        for job in self._jobs.values():
            job.stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _remember(self, job: Job) -> Job:
        self._jobs[job.number] = job
        ended = [number for number, old in self._jobs.items() if old.has_ended]
        for number in ended[: max(0, len(self._jobs) - _KEPT)]:
            del self._jobs[number]
        return job


def _carry_out(job: Job, work: Callable[[Progress], Any]) -> None:
    """Does the work, on a thread; whatever it raises is told to those who ask."""
    try:
        job.result = work(job.note)
    except JobStopped:
        job.failure = Refusal(409, "it was stopped", next_step="Do it again to continue.")
    except Exception as error:
        job.failure = explain_failure(error)
    finally:
        job.has_ended = True
