"""The line between a task and its source's process: messages of any size arrive unchanged."""

import socket
import threading
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.runtime.source_process.protocol import Line
from tests.thorough import examples


@dataclass(frozen=True)
class Packet:
    name: str
    first: pa.Buffer
    second: pa.Buffer


def pair() -> tuple[Line, Line]:
    here, there = socket.socketpair()
    return Line(here), Line(there)


sizes = st.integers(0, 300) | st.sampled_from([70_000, 3_000_000])


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.text(max_size=5), sizes, sizes), max_size=4))
def test_messages_arrive_unchanged(facts):
    packets = [
        Packet(name, pa.py_buffer(b"a" * first), pa.py_buffer(b"b" * second))
        for name, first, second in facts
    ]
    here, there = pair()
    with here, there:
        sender = threading.Thread(target=lambda: [here.send(packet) for packet in packets])
        sender.start()
        assert [there.receive() for _ in packets] == packets
        sender.join()


def test_arrow_reads_received_buffers_without_copying_them():
    batch = pa.RecordBatch.from_pydict({"a": pa.array(range(1_000)), "b": ["x"] * 1_000})
    here, there = pair()
    with here, there:
        here.send((batch.slice(1, 1).serialize(), batch.serialize()))
        small, large = there.receive()
    assert small.address % 8 == large.address % 8 == 0
    assert pa.ipc.read_record_batch(large, batch.schema) == batch
    assert pa.ipc.read_record_batch(small, batch.schema) == batch.slice(1, 1)


def test_a_closed_line_is_noticed_on_both_ends():
    here, there = pair()
    here.close()
    with pytest.raises(EOFError):
        there.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        there.send("packet")
    there.close()


def test_a_truncated_message_is_not_received():
    here, there = socket.socketpair()
    with Line(there) as line:
        here.sendall(b"\0\0\0\5\0\0\0\0abc")
        here.close()
        with pytest.raises(EOFError):
            line.receive()


@pytest.mark.timeout(20)
def test_a_sender_whose_receiver_hangs_gives_up_when_another_task_connects(tmp_path):
    here, there = pair()
    with (
        here,
        there,
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as other,
    ):
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        connecting = threading.Timer(0.2, other.connect, [str(tmp_path / "socket")])
        connecting.start()
        with pytest.raises(ConnectionAbortedError, match="another task has connected"):
            here.send(pa.py_buffer(b"x" * 10_000_000), unless=listener)
        connecting.join()
