"""A source that is written for pynumaflow, called as its process calls it."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from ebbflow import NackOptions
from ebbflow.domain.user_source import NackOffset, Source
from ebbflow.numaflow.pynumaflow.adapters import PynumaflowSource, adapt
from ebbflow.usercode.calling import Handler
from tests.numaflow.pynumaflow import functions


class Opened:
    """A source in a handler, as in its process."""

    def __init__(self, code) -> None:
        self.handler = Handler(adapt(code, "source"))
        self.sourcer = self.handler.instance._sourcer

    def call(self, method, *arguments):
        """Calls a method and waits for it."""
        return self.handler.finish(getattr(self.handler.instance, method)(*arguments))


def test_messages_keep_every_field_from_the_read_handler():
    source = Opened(functions.Numbers)
    first, second = source.call("read", 2, timedelta(milliseconds=100))
    assert (first.value, second.value) == (b"0", b"1")
    assert second.keys == ["k1"]
    assert second.headers == {"n": "1"}
    assert second.metadata == {"own": {"n": b"1"}}
    assert second.event_time == datetime(2026, 8, 1, 12, 0, 1, tzinfo=UTC)
    assert (first.partition, second.partition) == (0, 1)


def test_acknowledged_offsets_reach_the_source_with_their_partitions():
    source = Opened(partial(functions.Numbers, 4))
    messages = source.call("read", 10, timedelta(milliseconds=100))
    source.call("ack", [message.offset for message in messages])
    assert source.sourcer.acked == [0, 1, 2, 3]
    assert source.call("pending") == 0
    assert source.call("partitions") == [0, 1]


def test_a_nack_is_passed_on_after_its_delay(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("ebbflow.numaflow.pynumaflow.adapters.time.monotonic", lambda: clock[0])
    source = Opened(functions.source_server)
    messages = source.call("read", 3, timedelta(milliseconds=100))
    later, soon = NackOptions(delay="5s", reason="later"), NackOptions()
    options_of_nacks = [later, soon, NackOptions(delay="2s")]
    pairs = zip(messages, options_of_nacks, strict=True)
    source.call("nack", [NackOffset(message.offset, options) for message, options in pairs])
    assert [m.value for m in source.call("read", 3, timedelta(milliseconds=100))] == [b"1"]
    clock[0] = 102.0
    assert [m.value for m in source.call("read", 3, timedelta(milliseconds=100))] == [b"2"]
    clock[0] = 104.9
    assert source.call("read", 3, timedelta(milliseconds=100)) == []
    clock[0] = 105.0
    assert [m.value for m in source.call("read", 3, timedelta(milliseconds=100))] == [b"0"]


def test_a_pending_count_below_zero_means_unknown():
    assert Opened(partial(functions.Numbers, -1)).call("pending") is None


@pytest.mark.parametrize("nackable", [True, False])
def test_a_source_of_an_older_pynumaflow_leaves_nacks_to_ebbflow(nackable):
    class Older:
        """As sources were before 0.11: any class with the handlers."""

        async def partitions_handler(self):
            """Says its partitions."""
            return functions.PartitionsResponse(partitions=[7])

    Older.__module__ = "pynumaflow.sourcer"
    if nackable:
        Older.nack_handler = lambda self, request: None
    source = Opened(Older)
    assert isinstance(source.handler.instance, PynumaflowSource)
    assert (type(source.handler.instance).nack is not Source.nack) is nackable
    assert source.call("partitions") == [7]
