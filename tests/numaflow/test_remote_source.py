"""A source in a process of its own provides messages and receives their outcomes."""

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbflow.domain.errors import StreamBroken, Unavailable
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset
from ebbflow.engine.inlet import NO_NACKS, SourceAcks
from ebbflow.engine.source_columns import check_columns
from ebbflow.engine.system_errors import LISTED
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote_source import RemoteSource
from ebbflow.runtime.source_process.protocol import Failed, Hello, Order, Settle
from ebbflow.runtime.source_process.reading import SourceReading
from tests.processes import command_of, family_of

pytestmark = pytest.mark.slow

SERVERS = Path(__file__).parent / "servers"
START = datetime(2026, 8, 1, tzinfo=UTC)


@contextmanager
def opened(name: str, *arguments: str, **env: object) -> Iterator[RemoteSource]:
    command = (sys.executable, str(SERVERS / f"{name}.py"), *arguments)
    variables = tuple((key, str(value)) for key, value in env.items())
    source = RemoteSource(FunctionPlan("udsource", image=name, command=command, env=variables))
    source.open()
    try:
        yield source
    finally:
        source.close()


def read(source: RemoteSource, count: int, limit: int = 8_000) -> list[dict[str, Any]]:
    """At least that many messages."""
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 120
    while len(rows) < count:
        rows += check_columns(source.read(limit, timedelta(seconds=0.5))).to_pylist()
        assert time.monotonic() < deadline, f"{len(rows)} of {count}"
    return rows


def offsets(*names: bytes) -> pa.BinaryArray:
    return pa.array(names, pa.binary())


def test_a_pynumaflow_source_provides_messages_and_receives_acks_and_nacks(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with opened("pynumaflow_source", MESSAGES=1_200, RECORD=record) as source:
        assert source.pending() == 1_200
        assert source.partitions() == [4, 5]
        rows = read(source, 1_200)
        assert [row["value"] for row in rows] == [b"message %d" % n for n in range(1_200)]
        assert rows[7] == {
            "offset": b"7.5",
            "value": b"message 7",
            "event_time": START + timedelta(seconds=7),
            "keys": ["key", "7"],
            "headers": [("number", "7")],
            "partition": 5,
            "deliveries": None,
            "metadata": [("group", [("number", b"7")])],
        }
        names = [row["offset"] for row in rows]
        source.ack_columns(offsets(*names[:600], *names[602:]))
        began = time.monotonic()
        source.nack([NackOffset(name, NackOptions(delay=300)) for name in names[600:602]])
        assert [row["offset"] for row in read(source, 2)] == names[600:602]
        assert 0.3 <= time.monotonic() - began < 20
        source.ack(names[600:602])
        lines = record.read_text().splitlines()
        assert lines[600:602] == ["ack 602@4", "ack 603@5"]
        assert lines[-4:] == ["nack 600@4", "nack 601@5", "ack 600@4", "ack 601@5"]
        assert len(lines) == 1_202
        assert source.pending() == 0
        began = time.monotonic()
        assert source.read(100, timedelta(seconds=0.2)).num_rows == 0
        assert time.monotonic() - began < 20


def test_small_and_large_reads_return_the_same_types(tmp_path: Path) -> None:
    with opened("pynumaflow_source", MESSAGES=200, RECORD=tmp_path / "record") as source:
        few = [row for _ in range(4) for row in read(source, 20, limit=20)]
        assert [row["offset"] for row in few] == [b"%d.%d" % (n, 4 + n % 2) for n in range(80)]
        many = read(source, 120)
    assert {key: type(value) for key, value in few[0].items()} == {
        key: type(value) for key, value in many[0].items()
    }


def test_nacks_are_sent_with_their_options(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with opened("odd_source", RECORD=record) as source:
        names = [row["offset"] for row in read(source, 3)][:3]
        options = [NackOptions(), NackOptions(0, 0, ""), NackOptions(5_000, 3, "busy")]
        source.nack([NackOffset(*pair) for pair in zip(names, options, strict=True)])
    entries = [" ".join(entry.split()) for entry in record.read_text().split("\n--\n")]
    assert entries == [
        'offsets { offset: "0" }',
        'offsets { offset: "1" } nack_options { reason: "" max_deliveries: 0 delay: 0 }',
        'offsets { offset: "2" } nack_options { reason: "busy" max_deliveries: 3 delay: 5000 }',
        "",
    ]


def reading_of(plan: FunctionPlan) -> SourceReading:
    """The source as its process calls it."""
    code = pickle.dumps(partial(RemoteSource, plan))
    return SourceReading(Order("in", 0, code, None, [], "", LISTED, 0, 500, 8_000, 0.2))


@pytest.mark.parametrize(("version", "redelivers"), [("v0.10.3", False), ("v0.12.0", True)])
def test_a_source_whose_sdk_knows_no_nacks_is_treated_as_one_without_them(
    version: str, redelivers: bool
) -> None:
    command = (sys.executable, str(SERVERS / "odd_source.py"), "plain", version)
    reading = reading_of(FunctionPlan("udsource", command=command))
    hello = reading.greet()
    reading.close()
    assert hello == Hello(redelivers, False, [])


def test_all_messages_arrive_although_the_function_is_killed_repeatedly(
    tmp_path: Path, function_in: Callable[[str], tuple[str, ...]]
) -> None:
    payloads, record, messages = tmp_path / "payloads", tmp_path / "record", 3_000
    payloads.write_text("\n".join(f"message {n}" for n in range(messages)))
    record.touch()
    variables = (("FUNCTION_PAYLOADS", str(payloads)), ("FUNCTION_RECORD", str(record)))
    command = (*function_in("python"), "source")
    arguments = ("$(EBBFLOW_SOCKETS)",)
    plan = FunctionPlan("udsource", command=command, args=arguments, env=variables)
    reading = reading_of(plan)
    reading.greet()
    values: list[bytes] = []
    kills = iter((200, 1_500, 1_501))
    next_kill, outages = next(kills), 0
    deadline = time.monotonic() + 120
    while len(set(values)) < messages:
        assert time.monotonic() < deadline
        given = until_it_is_up(partial(reading.attempt, "read", reading.read))
        if given is None:
            continue
        rows = given.read_rows()
        values += rows.column("value").to_pylist()
        if len(values) > next_kill:
            kill_function(command)
            next_kill, outages = next(kills, 10 * messages), outages + 1
        ends = Settle.of(SourceAcks(rows.column("offset"), NO_NACKS, rows.column("id")))
        until_it_is_up(partial(reading.attempt, "settle", reading.settle, ends))
    reading.close()
    assert outages == 3
    assert set(values) == {b"message %d" % n for n in range(messages)}
    acks = {line for line in record.read_text().splitlines() if line.startswith("ack ")}
    assert len(acks) == messages


def until_it_is_up(attempt: Callable[[], Any]) -> Any:
    """The result of an attempt, repeated as by a task until the function is up again."""
    while isinstance(answer := attempt(), Failed):
        assert answer.outage is not None, answer.what
    return answer


def kill_function(command: Sequence[str]) -> None:
    """Kills the function with the last of these arguments that this process has started."""
    (function,) = (
        child for child in family_of(os.getpid()) if command_of(child)[: len(command)] == [*command]
    )
    function.kill()
    function.wait(120)


def test_unknown_pending_counts_and_partitions_are_not_reported() -> None:
    with opened("odd_source") as source:
        assert source.pending() is None
        assert source.partitions() == ()


def test_messages_that_are_requested_ahead_arrive_in_order() -> None:
    with opened("odd_source") as source:
        rows = read(source, 5_000, limit=5_000)
        assert [row["offset"] for row in rows] == [b"%d.0" % n for n in range(len(rows))]


def test_a_source_that_waits_for_acks_before_the_next_messages_gets_them() -> None:
    with opened("odd_source", "waits-for-acks") as source:
        for start in range(0, 70, 7):
            rows = read(source, 7)
            assert [row["offset"] for row in rows] == [b"%d.0" % n for n in range(start, start + 7)]
            source.ack([row["offset"] for row in rows])


def test_messages_are_passed_on_while_the_function_waits_for_more() -> None:
    with opened("odd_source", "slow") as source:
        assert len(read(source, 1)) == 1
        began = time.monotonic()
        assert source.read(100, timedelta(seconds=0.2)).num_rows == 0
        assert 0.2 <= time.monotonic() - began < 20


def test_an_end_mark_may_arrive_with_a_message() -> None:
    with opened("odd_source", "end-with-message") as source:
        assert len(read(source, 20)) == 20


def test_the_same_offset_in_several_partitions_is_several_messages() -> None:
    with opened("odd_source", "partitions") as source:
        rows = read(source, 3)[:3]
        assert [(row["offset"], row["partition"]) for row in rows] == [
            (b"0.0", 0),
            (b"0.-1", -1),
            (b"0.2147483647", 2**31 - 1),
        ]
        source.ack([row["offset"] for row in rows])


def test_a_function_that_breaks_is_unavailable_once_its_messages_are_read() -> None:
    with opened("odd_source", "break") as source:
        assert len(read(source, 7)) == 7
        with pytest.raises(Unavailable, match=r"the function odd_source: INTERNAL: .*: no more"):
            source.read(100, timedelta(seconds=5))


def test_a_function_that_reports_a_failed_read_is_unavailable() -> None:
    with (
        opened("odd_source", "failure") as source,
        pytest.raises(Unavailable, match="the function could not read: the disk is gone"),
    ):
        source.read(100, timedelta(seconds=5))


def test_a_message_without_an_offset_breaks_the_stream() -> None:
    with (
        opened("odd_source", "no-offset") as source,
        pytest.raises(StreamBroken, match="the function sent a message without an offset"),
    ):
        source.read(100, timedelta(seconds=5))


def test_a_function_that_ends_when_it_receives_acks_is_unavailable() -> None:
    with opened("odd_source", "exit-on-ack") as source:
        rows = read(source, 10)
        with pytest.raises(Unavailable, match=r"the function odd_source: .*it ended with code 3"):
            source.ack([rows[0]["offset"]])


def test_a_function_that_breaks_on_an_ack_fails_and_can_be_read_again() -> None:
    with opened("odd_source", "break-on-ack") as source:
        rows = read(source, 10)
        with pytest.raises(StreamBroken, match=r"UDF_EXECUTION_ERROR\(udsource\): unknown"):
            source.ack([rows[0]["offset"]])
        assert read(source, 10)[0]["offset"] == b"0.0"
