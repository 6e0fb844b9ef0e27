"""A client that posts on many connections at once, each post when the last one is answered.

python -m benchmarks.workers.posting HOST PORT PATH CONNECTIONS POSTS LINES SIZE SEED

A post has one text, or this many ``LINES``. Prints JSON: how many ``seconds`` all posts took,
the seconds of CPU that the client used, and how long a post took in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator

from benchmarks.work import numbered

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Posting(asyncio.Protocol):
    """One connection."""

    def __init__(self, requests: Iterator[bytes], took: list[float], all_done: _Count) -> None:
        self._requests = requests
        self._took = took
        self._all_done = all_done
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first post."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Sends the next post when the answer is complete."""
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if found else None
        if length is None or len(body) < int(length[1]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(self._answer.decode())
        self._took.append(time.perf_counter() - self._sent)
        self._answer = b""
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            self._all_done.one()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)


class _Count:
    """Signals when that many connections have ended."""

    def __init__(self, connections: int) -> None:
        self._left = connections
        self.event = asyncio.Event()

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            self.event.set()


def requests(host: str, path: str, posts: int, lines: int, size: int, seed: int) -> list[bytes]:
    """All posts as they are written."""
    kind = "text/plain" if lines == 1 else "application/x-ndjson"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
    head += "Content-Length: %d\r\n\r\n"
    texts = numbered(posts * lines, size, seed)
    bodies = (b"\n".join(next(texts) for _ in range(lines)) for _ in range(posts))
    return [head.encode() % len(body) + body for body in bodies]


async def post(host: str, port: int, connections: int, written: list[bytes]) -> None:
    """Posts everything and prints what it took."""
    took: list[float] = []
    done, waiting = _Count(connections), iter(written)
    began, used = time.perf_counter(), time.process_time()
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Posting(waiting, took, done), host, port)
    await done.event.wait()
    took.sort()
    report = {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - used,
        "p50": 1000 * took[len(took) // 2],
        "p99": 1000 * took[len(took) * 99 // 100],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    host, port, path, connections, *numbers = sys.argv[1:]
    written = requests(host, path, *map(int, numbers))
    asyncio.run(post(host, int(port), int(connections), written))
