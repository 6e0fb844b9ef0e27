"""The sources that stand in for images."""

from ebbflow.domain.source import Source
from ebbflow.numaflow.images.sources import CountingMetadataSource, CountingSource


def test_numbers_come_when_all_before_them_are_acknowledged() -> None:
    source = CountingSource()
    first = source.read(3, 1.0)
    assert [message.value for message in first] == [b"0", b"1", b"2"]
    assert all(message.headers["x-txn-id"] for message in first)
    source.ack([message.offset for message in first[:2]])
    assert (source.read(3, 1.0), source.pending()) == ([], 1)
    source.ack([message.offset for message in first])
    assert [message.value for message in source.read(2, 1.0)] == [b"3", b"4"]


def test_a_source_that_takes_anothers_place_has_offsets_of_its_own() -> None:
    offsets = [CountingSource().read(1, 1.0)[0].offset for _ in range(2)]
    assert len(set(offsets)) == 2


def test_what_is_nacked_is_left_to_ebbflow() -> None:
    assert CountingSource.nack is Source.nack


def test_a_hundred_numbers_come_with_metadata_and_then_no_more() -> None:
    source = CountingMetadataSource()
    messages = source.read(80, 1.0)
    assert set(messages[0].metadata["simple-source"]) == {"txn-id"}
    source.ack([message.offset for message in messages])
    last = source.read(80, 1.0)
    assert [message.value for message in last] == [b"%d" % number for number in range(80, 100)]
    assert not source.exhausted
    source.ack([message.offset for message in last])
    assert (source.exhausted, source.read(80, 1.0)) == (True, [])
