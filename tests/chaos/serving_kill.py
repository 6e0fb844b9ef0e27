"""Send requests from several clients, kill the pipeline's process tree with -9, restart it, count.

Some clients submit requests and fetch the results at the end, others wait for the answer. Every
accepted request must end as expected: answered once or twice, without an answer, or failed with its
reason. A waiting client gets its answer, or an error that names the id to fetch. The seed of the
moments is printed.

    python -m tests.chaos.serving_kill --requests 20000 --kills 10 [--clients 24] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ebbflow.client import (
    Answered,
    AsyncClient,
    RequestError,
    RequestFailed,
    RequestRefused,
    UnknownRequest,
)
from ebbflow.domain.message import make_request_id
from tests.chaos.restarted_run import RestartedRun
from tests.ports import free_port

PIPELINE = Path(__file__).parent / "pipeline"
# Some kills happen while the pipeline restarts, the others while requests flow.
WHILE_STARTING = 0.25
PATIENCE = 120.0
# Shorter than a restart, so that some waiting clients are told to fetch their results.
WAIT = 4.0
PAUSE = 0.4
FAILED = "failed"


@dataclass
class Asked:
    """The responses to clients. ``accepted`` and ``to_fetch`` are requests to be fetched, by id."""

    accepted: dict[str, int] = field(default_factory=dict)
    to_fetch: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Tally:
    """The outcomes of the requests: ``lost`` ones were accepted and have not ended."""

    requests: int
    kills: int
    seconds: float
    asked: Asked
    unknown: int
    lost: list[str]

    def __str__(self) -> str:
        errors = ", ".join(f"{n} x {name}" for name, n in sorted(self.asked.unanswered.items()))
        return (
            f"{self.requests} requests, {self.kills} kills, {self.seconds:.0f} s: "
            f"{len(self.asked.accepted)} accepted, {self.asked.answered} answered at once, "
            f"{len(self.asked.to_fetch)} to fetch by id ({errors or 'no errors'}; {self.unknown} "
            f"of them never accepted); {len(self.lost)} lost, {len(self.asked.wrong)} wrong"
        )


class ServingChaos:
    """One serving pipeline, in its own folder."""

    def __init__(
        self,
        folder: Path,
        requests: int,
        kills: int,
        clients: int,
        seed: int,
        while_starting: float = WHILE_STARTING,
    ) -> None:
        self._folder = folder
        self._requests = requests
        self._clients = clients
        self._chance = random.Random(seed)
        self._moments = sorted(self._chance.sample(range(requests // 20, requests), kills))
        self._run = RestartedRun(folder, "questions.yaml", self._chance, while_starting)
        self._port = free_port()
        self._asked = Asked()
        self._begun = 0
        for name in ("questions.yaml", "questions.py"):
            text = (PIPELINE / name).read_text(encoding="utf-8")
            text = text.replace("http: 8080", f"http: {self._port}")
            (folder / name).write_text(text, encoding="utf-8")

    def run(self) -> Tally:
        """Send every request, kill as often as requested, then fetch the results."""
        began = time.monotonic()
        try:
            return asyncio.run(self._ask_and_kill(began))
        finally:
            self._run.end()

    # --- the pipeline ---------------------------------------------------------------------------

    async def _ask_and_kill(self, began: float) -> Tally:
        self._run.start()
        kills = 0
        shares = [range(n, self._requests, self._clients) for n in range(self._clients)]
        works = (self._submit, self._ask, self._submit_unnamed)
        async with (
            AsyncClient(self._url, timeout="120s") as client,
            httpx.AsyncClient(base_url=self._url, timeout=20) as self._web,
        ):
            await self._until_ready()
            async with asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(self._work(works[number % len(works)], client, share))
                    for number, share in enumerate(shares)
                ]
                while not all(task.done() for task in asking):
                    if self._moments and self._begun > self._moments[0]:
                        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
                        await self._kill()
                        kills += 1
                    self._run.check()
                    await asyncio.sleep(0.05)
            lost = await self._fetch_all(client, self._asked.accepted)
            unknown = await self._fetch_all(client, self._asked.to_fetch)
        self._run.stop()
        seconds = time.monotonic() - began
        return Tally(self._requests, kills, seconds, self._asked, len(unknown), lost)

    async def _kill(self) -> None:
        """Kill the run and restart it, and perhaps do so once more while it starts."""
        killed = self._run.kill()
        self._moments.pop(0)
        print(f"killed {killed} processes at {self._begun} requests", flush=True)
        await self._run.start_again()
        await self._until_ready()

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if (await self._web.get("/ready")).is_success:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(PAUSE)
        raise AssertionError(self._run.log)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # --- the clients ----------------------------------------------------------------------------

    async def _work(
        self,
        do: Callable[[AsyncClient, int], Awaitable[None]],
        client: AsyncClient,
        numbers: Iterable[int],
    ) -> None:
        for number in numbers:
            self._begun += 1
            await do(client, number)

    async def _submit(self, client: AsyncClient, number: int) -> None:
        """Submit a request under its own id until it is accepted."""
        request = make_request_id()
        while True:
            try:
                await client.submit(str(number), id=request)
            except RequestRefused as error:
                self._asked.unanswered[f"refused with {error.status}"] += 1
                if error.status == 409:  # an earlier attempt was accepted
                    self._asked.accepted[request] = number
                    return
                await asyncio.sleep(PAUSE)
            except RequestError as error:
                self._asked.unanswered[type(error).__name__] += 1
                await asyncio.sleep(PAUSE)
            else:
                self._asked.accepted[request] = number
                return

    async def _submit_unnamed(self, client: AsyncClient, number: int) -> None:
        """Submit a request without an id, again if it is not confirmed."""
        while True:
            try:
                reply = await self._web.post("/v1/process/async", content=str(number))
            except httpx.HTTPError as error:
                self._asked.unanswered[type(error).__name__] += 1
            else:
                if reply.status_code == 200:
                    self._asked.accepted[reply.json()["id"]] = number
                    return
                self._asked.unanswered[f"refused with {reply.status_code}"] += 1
                assert reply.status_code in (408, 429, 503), reply.text
            await asyncio.sleep(PAUSE)

    async def _ask(self, client: AsyncClient, number: int) -> None:
        """Wait for the answer; without one, note the id from the error."""
        while True:
            try:
                answer = await client.ask(str(number), timeout=f"{WAIT}s")
            except RequestFailed as error:
                self._check(error.id, number, FAILED)
            except RequestRefused as error:
                # The server is down, or there is no room: it was not accepted.
                self._asked.unanswered[f"refused with {error.status}"] += 1
                await asyncio.sleep(PAUSE)
                continue
            except RequestError as error:
                self._asked.unanswered[type(error).__name__] += 1
                self._asked.to_fetch[error.id] = number
                return
            else:
                self._check(answer.id, number, answer.results)
            self._asked.answered += 1
            return

    # --- counting -------------------------------------------------------------------------------

    async def _fetch_all(self, client: AsyncClient, requests: dict[str, int]) -> list[str]:
        """Fetch all results; return the requests that are unknown or do not end."""
        missing = []
        for request, number in requests.items():
            try:
                answer: Answered = await client.wait(request, timeout=f"{PATIENCE}s")
            except RequestFailed:
                self._check(request, number, FAILED)
            except UnknownRequest:
                missing.append(request)
            except RequestError as error:
                print(f"{number}: {error}", flush=True)
                missing.append(request)
            else:
                self._check(request, number, answer.results)
        return missing

    def _check(self, request: str, number: int, end: object) -> None:
        if end != expected(number):
            self._asked.wrong.append(f"{request}: {number} came to {end!r}")


def expected(number: int) -> object:
    """The expected outcome of a request."""
    value = b"%d" % number
    match number % 10:
        case 0:
            return ()
        case 1:
            return FAILED
        case 3:
            return (b"first " + value, b"second " + value)
    return (b"answer to " + value,)


def main() -> None:
    """Run it as a command; exit 1 when anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as folder:
        options = (arguments.requests, arguments.kills, arguments.clients, arguments.seed)
        tally = ServingChaos(Path(folder), *options).run()
    print(tally)
    for line in tally.asked.wrong[:20]:
        print(line)
    sys.exit(1 if tally.lost or tally.asked.wrong else 0)


if __name__ == "__main__":
    main()
