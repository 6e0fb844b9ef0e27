"""The floor for single messages: a bare process that reads and writes in bulk on the socket.

python -m benchmarks.workers.bulk STREAM OUT publish|read

It pulls 4,000 messages at a time, fewer large ones, and has up to 12,000 in flight: each is
published with an id, its confirmation matched by number, and then it is acknowledged. ``read`` only
acknowledges. No outcomes, no redelivery, no reconnecting: as fast as Python and the server can.
"""

from __future__ import annotations

import re
import sys

from benchmarks.wire import Wire, pull
from benchmarks.workers import server

CONSUMER = "bulk"
_PULL, _PULLS = 4_000, 3
# A server ends the connection of a client that has more than 64 MB to read.
_BYTES = 12_000_000
_ANSWER = rb'MSG %b(\d+) 1 \d+\r\n\{"stream":"\w+", *"seq":\d+[^}]*\}\r\n'
# The end of a pull, which this program does not wait for.
_STATUS = re.compile(rb"HMSG \S+ 1 \d+ \d+\r\n(?:[^\r]+\r\n)*\r\n\r\n")
_PING = re.compile(rb"PING\r\n")
_LONGEST_ANSWER = 500
_ACK = b"PUB %b 4\r\n+ACK\r\n"
_HEAD = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")


class Bulk:
    """Messages in flight, by number."""

    def __init__(self, wire: Wire, stream: str, out: str, publishes: bool) -> None:
        self._wire = wire
        self._stream = stream
        self._publishes = publishes
        stored = wire.inbox(b"stored.")
        to = b"HPUB %b %b" % (out.encode(), stored)
        self._write = to + b"%b %d %d\r\nNATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n%b\r\n"
        # The number in the stream identifies a message: it stays the same when it is redelivered.
        acks = rb"\$JS\.ACK\.%b\.%b\.\d+\.(\d+)\.[^ ]+" % (stream.encode(), CONSUMER.encode())
        self._message = re.compile(rb"MSG [^ ]+ 1 (%b) (\d+)\r\n" % acks)
        self._confirmation = re.compile(_ANSWER % re.escape(stored))
        self._replies: dict[bytes, bytes] = {}
        self._open = self._pull = 0

    def serve(self) -> None:
        """Works until killed."""
        config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": -1}
        self._wire.request(
            f"CONSUMER.DURABLE.CREATE.{self._stream}.{CONSUMER}",
            {"stream_name": self._stream, "config": config},
        )
        state = self._wire.request(f"STREAM.INFO.{self._stream}", {})["state"]
        self._pull = max(1, min(_PULL, _BYTES * state["messages"] // state["bytes"]))
        rest = b""
        while True:
            self._wire.send(self._pulls())
            rest = self._handle(rest + self._wire.wait())

    def _pulls(self) -> bytes:
        """Returns requests for more, as long as there is room for all of it."""
        pulls = _PULLS - -(-self._open // self._pull)
        self._open += pulls * self._pull
        return pull(self._stream, CONSUMER, self._pull, self._wire.inbox(b"delivered")) * pulls

    def _handle(self, data: bytes) -> bytes:
        """Writes the replies to all that has arrived; returns the incomplete rest."""
        written: list[bytes] = []
        at, end, replies, match = 0, len(data), self._replies, self._message.match
        while True:
            if message := match(data, at):
                reply, number, size = message.groups()
                start = message.end()
                stop = start + int(size)
                if stop + 2 > end:
                    break
                at = stop + 2
                if self._publishes:
                    replies[number] = reply
                    head = _HEAD + len(number)
                    text = data[start:stop].upper()
                    written.append(self._write % (number, head, head + len(text), number, text))
                else:
                    written.append(_ACK % reply)
                    self._open -= 1
            elif confirmation := self._confirmation.match(data, at):
                written.append(_ACK % replies.pop(confirmation[1]))
                self._open -= 1
                at = confirmation.end()
            elif status := _STATUS.match(data, at):
                at = status.end()
            elif ping := _PING.match(data, at):
                written.append(b"PONG\r\n")
                at = ping.end()
            elif b'{"error"' in data[at : at + _LONGEST_ANSWER]:
                raise RuntimeError(data[at:].decode())
            else:
                break
        self._wire.send(b"".join(written))
        return data[at:]


if __name__ == "__main__":
    stream, out, job = sys.argv[1:]
    Bulk(Wire(server()), stream, out, job == "publish").serve()
