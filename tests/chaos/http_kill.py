"""Post to a pipeline from several clients, kill its whole process tree with -9, restart it, count.

Each client posts single messages and batches of lines, all with their own ids, and posts the
same again until it is answered with 200. Every message answered like that must be in the file of
the sink. Duplicates are allowed and reported; so is the number of messages that the source has
stored twice despite equal ids. The seed of the posts and of the moments is printed.

    python -m tests.chaos.http_kill --messages 200000 --kills 10 [--clients 6] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from tests.chaos.restarted_run import RestartedRun
from tests.ports import free_port

PIPELINE = Path(__file__).parent / "pipeline"
NDJSON = "application/x-ndjson"
# Some kills happen while the pipeline restarts, the others while messages flow.
WHILE_STARTING = 0.25
LONGEST_BATCH = 200
PATIENCE = 120.0


@dataclass
class Posted:
    """The responses that the clients received."""

    accepted: set[bytes] = field(default_factory=set)
    requests: int = 0
    rejected: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0


@dataclass(frozen=True)
class Tally:
    """The outcomes of the messages."""

    messages: int
    kills: int
    seconds: float
    posted: Posted
    arrived: int
    duplicates: int
    stored_twice: int
    lost: list[bytes]

    def __str__(self) -> str:
        others = ", ".join(f"{n} x {status}" for status, n in sorted(self.posted.rejected.items()))
        return (
            f"{self.messages} messages, {self.kills} kills, {self.seconds:.0f} s: "
            f"{len(self.posted.accepted)} answered with 200 in {self.posted.requests} requests "
            f"(others: {others or 'none'}, {self.posted.unanswered} without an answer); "
            f"{self.arrived} arrived, {self.duplicates} of them again, "
            f"{self.stored_twice} stored twice, {len(self.lost)} lost"
        )


class HttpChaos:
    """One pipeline with an HTTP source, in its own folder."""

    def __init__(
        self,
        folder: Path,
        messages: int,
        kills: int,
        clients: int,
        seed: int,
        while_starting: float = WHILE_STARTING,
    ) -> None:
        self._folder = folder
        self._messages = messages
        self._clients = clients
        self._chance = random.Random(seed)
        self._moments = sorted(self._chance.sample(range(messages // 20, messages), kills))
        self._run = RestartedRun(folder, "posts.yaml", self._chance, while_starting)
        self._written = 0
        self._port = free_port()
        self._posted = Posted()
        spec = (PIPELINE / "posts.yaml").read_text(encoding="utf-8")
        spec = spec.replace("http: 8080", f"http: {self._port}")
        (folder / "posts.yaml").write_text(spec, encoding="utf-8")
        code = (PIPELINE / "posts.py").read_text(encoding="utf-8")
        (folder / "posts.py").write_text(code, encoding="utf-8")

    def run(self) -> Tally:
        """Post everything, kill as often as requested, then let the run finish."""
        began = time.monotonic()
        try:
            kills = asyncio.run(self._post_and_kill())
        finally:
            self._run.end()
        return self._count(kills, time.monotonic() - began)

    # --- the pipeline ---------------------------------------------------------------------------

    async def _post_and_kill(self) -> int:
        self._run.start()
        kills = 0
        shares = [range(n, self._messages, self._clients) for n in range(self._clients)]
        async with asyncio.TaskGroup() as group:
            posting = [
                group.create_task(self._post_all(f"c{number}", share))
                for number, share in enumerate(shares)
            ]
            while not all(task.done() for task in posting):
                if self._is_time_to_kill():
                    await asyncio.sleep(self._chance.uniform(0.0, 2.0))
                    await self._kill()
                    kills += 1
                self._run.check()
                await asyncio.sleep(0.05)
        await self._arrivals()
        self._run.stop()
        return kills

    async def _kill(self) -> None:
        """Kill the run and restart it, and perhaps do so once more while it starts."""
        killed = self._run.kill()
        self._written = self._size()
        self._moments.pop(0)
        print(f"killed {killed} processes at {len(self._posted.accepted)} messages", flush=True)
        await self._run.start_again()

    @property
    def _wants_to_kill(self) -> bool:
        return bool(self._moments) and len(self._posted.accepted) > self._moments[0]

    def _is_time_to_kill(self) -> bool:
        """Whether messages are both accepted at the source and arriving at the sink."""
        return self._wants_to_kill and self._size() > self._written

    def _size(self) -> int:
        return sum(path.stat().st_size for path in (self._folder / "journal").glob("*"))

    async def _arrivals(self) -> None:
        """Wait until everything has arrived, or nothing has for a while."""
        seen, since = -1, time.monotonic()
        while (now := len(set(self._lines()))) < self._messages:
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                return
            await asyncio.sleep(0.2)

    # --- the clients ----------------------------------------------------------------------------

    async def _post_all(self, name: str, numbers: range) -> None:
        chance = random.Random(f"{self._chance.random()}{name}")
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            start = 0
            while start < len(numbers):
                small = self._wants_to_kill or chance.random() < 0.7
                size = 1 if small else chance.randint(2, LONGEST_BATCH)
                values = [b"%d" % number for number in numbers[start : start + size]]
                await self._post(session, f"{name}-{start}", values, chance)
                start += size
                if self._wants_to_kill:  # keep some in flight, without using all up
                    await asyncio.sleep(0.1)

    async def _post(
        self, session: aiohttp.ClientSession, post: str, values: list[bytes], chance: random.Random
    ) -> None:
        """Post the same until it is accepted."""
        headers = {"x-numaflow-id": post}
        if len(values) > 1 or chance.random() < 0.1:
            headers["content-type"] = NDJSON
        url = f"http://127.0.0.1:{self._port}/vertices/in"
        while True:
            self._posted.requests += 1
            try:
                async with session.post(url, data=b"\n".join(values), headers=headers) as answer:
                    await answer.read()
                    if answer.status == 200:
                        self._posted.accepted.update(values)
                        return
                    self._posted.rejected[answer.status] += 1
                    assert answer.status in (429, 503), await answer.text()
            except (aiohttp.ClientError, TimeoutError):
                self._posted.unanswered += 1
            await asyncio.sleep(chance.uniform(0.05, 0.3))

    # --- counting -------------------------------------------------------------------------------

    def _lines(self) -> list[bytes]:
        journal = self._folder / "journal"
        texts = [path.read_bytes() for path in journal.glob("*")] if journal.exists() else []
        # The last line may be incomplete.
        return [line for text in texts for line in text.split(b"\n")[:-1]]

    def _count(self, kills: int, seconds: float) -> Tally:
        lines = Counter(self._lines())
        with start_embedded(self._folder / ".ebbflow") as server, open_link(server) as link:
            positions = link.run(read_positions(link.client, Names("posts")))
        stored = positions["in", 0].counts.read
        return Tally(
            self._messages,
            kills,
            seconds,
            self._posted,
            len(lines),
            lines.total() - len(lines),
            stored - self._messages,
            sorted(self._posted.accepted - lines.keys()),
        )


def main() -> None:
    """Run it as a command; exit 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as folder:
        options = (arguments.messages, arguments.kills, arguments.clients, arguments.seed)
        tally = HttpChaos(Path(folder), *options).run()
    print(tally)
    sys.exit(1 if tally.lost else 0)


if __name__ == "__main__":
    main()
