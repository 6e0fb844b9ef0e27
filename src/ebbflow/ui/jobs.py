"""Work that a request starts and that may outlast it, such as replaying many dead letters.

A job continues when its browser is closed. The request that starts it gets the result if the job
ends soon, and otherwise the job's number, with which browsers ask for its progress.
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
"""Called with a job's progress, as a JSON value; raises ``JobStopped`` if the job has to end."""


class JobStopped(Exception):
    """Ends a job that a user stopped."""


@dataclass(slots=True)
class Job:
    """One job. After its end it has a ``result`` or a ``failure``."""

    number: int
    owner: str
    progress: Any = None
    result: Any = None
    failure: Refusal | None = None
    has_ended: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """Returns the state of the job as JSON fields."""
        facts: dict[str, Any] = {"job": self.number, "done": self.has_ended}
        facts |= {"progress": self.progress, "result": self.result}
        if self.failure is not None:
            facts |= {"error": self.failure.reason, "next_step": self.failure.next_step}
        return facts

    def note(self, progress: Any) -> None:
        """Records the progress; raises if the job has to end."""
        self.progress = progress
        if self.stop.is_set():
            raise JobStopped


class Jobs:
    """The jobs of one web UI; ``owner`` is the pipeline of a job. Used on one loop."""

    reply_within = 3.0
    """For a job that takes longer than this many seconds, the answer is its number."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "web-ui-job")
        self._numbers = count(1)
        self._jobs: dict[int, Job] = {}

    async def run(self, owner: str, work: Callable[[Progress], Any]) -> HttpReply:
        """Starts a job; returns its result, or its number if it takes longer."""
        if sum(not job.has_ended for job in self._jobs.values()) >= _MOST_WAITING:
            raise too_many("too many jobs are running")
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
        """Returns a job of a pipeline; ``Refusal`` if it has no job with this number."""
        job = self._jobs.get(read_number(number, "the number of a job", _LARGEST_NUMBER))
        if job is None or job.owner != owner:
            raise Refusal(404, f"there is no job {number}")
        return job

    def close(self) -> None:
        """Stops all jobs. A job that is started again continues where it stopped."""
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
    """Does the work, on a thread, and records its result or its error."""
    try:
        job.result = work(job.note)
    except JobStopped:
        job.failure = Refusal(409, "it was stopped", next_step="Do it again to continue.")
    except Exception as error:
        job.failure = explain_failure(error)
    finally:
        job.has_ended = True
