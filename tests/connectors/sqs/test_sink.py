"""The SQS sink: batches of ten with an outcome for each message."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytest.importorskip("boto3")

from ebbflow.connectors.sqs.sink import SqsSink, batches_of
from ebbflow.connectors.sqs.sqs_client import SqsAccess
from ebbflow.connectors.sqs.sqs_messages import read_raw, write_entry
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Datum, Status


@pytest.fixture
def opened(sqs):
    with ExitStack() as stack:

        def opened(queue):
            sink = SqsSink(SqsAccess("us-east-1", queue, endpoint=sqs.url))
            stack.callback(sink.close)
            sink.open()
            return sink

        yield opened


def statuses(responses):
    return {response.id: response.status for response in responses}


def test_every_message_of_many_batches_is_sent_and_answered(sqs, opened):
    queue = sqs.queue()
    data = [Datum(b"%d" % number, id=f"in-{number}") for number in range(25)]
    assert statuses(opened(queue)(data)) == {f"in-{n}": Status.OK for n in range(25)}
    assert sorted(int(each["Body"]) for each in sqs.receive(queue)) == list(range(25))


def test_a_refused_message_fails_alone(sqs, opened):
    queue = sqs.queue()
    data = [Datum(b"%d" % number, id=str(number)) for number in range(9)]
    data.insert(4, Datum(b"x" * 2_000_000, id="large"))
    responses = opened(queue)(data)
    assert {r.id for r in responses if r.status is not Status.OK} == {"large"}
    assert responses[4].status is Status.FAILURE
    assert responses[4].error
    assert len(sqs.receive(queue)) == 9


def test_an_outage_penalises_no_message(sqs, opened):
    queue = sqs.queue()
    sink = opened(queue)
    sqs.relay.cut()
    try:
        (response,) = sink([Datum(b"1", id="1")])
    finally:
        sqs.relay.mend()
    assert response.status is Status.UNAVAILABLE
    assert f"SQS queue {queue} in us-east-1" in response.error
    assert sink([Datum(b"1", id="1")])[0].status is Status.OK


def test_a_sink_opens_neither_during_an_outage_nor_without_its_queue(sqs, opened):
    with pytest.raises(SetupError, match="There is no SQS queue nowhere"):
        opened("nowhere")
    sqs.relay.cut()
    try:
        with pytest.raises(Unavailable):
            opened(sqs.queue())
    finally:
        sqs.relay.mend()


def test_a_fifo_queue_keeps_groups_in_order_and_each_message_once(sqs, opened):
    queue = sqs.queue(fifo=True)
    sink = opened(queue)
    data = [Datum(b"%d" % n, id=f"in-{n}", keys=["ab"[n % 2]]) for n in range(24)]
    sink(data)
    sink(data[:12])  # a replay
    received = []
    while some := sqs.receive(queue):
        received += some
    groups = {
        group: [
            int(each["Body"]) for each in received if each["Attributes"]["MessageGroupId"] == group
        ]
        for group in "ab"
    }
    assert groups == {"a": list(range(0, 24, 2)), "b": list(range(1, 24, 2))}


def test_metadata_and_headers_set_the_fields_that_numaflow_allows():
    metadata = {"sqs": {"MessageGroupId": b"g", "MessageDeduplicationId": b"d"}}
    entry = write_entry(
        0, Datum(b"x", headers={"MessageGroupId": "other"}, metadata=metadata), True
    )
    assert (entry["MessageGroupId"], entry["MessageDeduplicationId"]) == ("g", "d")
    entry = write_entry(0, Datum(b"x", headers={"DelaySeconds": "9"}), False)
    assert entry["DelaySeconds"] == 9


@pytest.mark.parametrize(
    "datum",
    [
        Datum(b"", id="1"),
        Datum(b"\xff\x00", id="1", keys=["a", "b"]),
        Datum(b"a\x01b", id="1", keys=["one"]),
        Datum("é\n\U0001f600".encode(), id="1", headers={"a": "1", "b": "x y"}),
        Datum(b"x", id="1", headers={"": "1", "b": "", "AWS.x": "\x00"}),
        Datum(b"x", id="1", headers={f"h{n}": str(n) for n in range(20)}),
    ],
)
@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_written_message_is_read_back_unchanged(datum, is_fifo):
    entry = write_entry(0, datum, is_fifo)
    assert len(entry.get("MessageAttributes", {})) <= 10
    raw = {"MessageId": "m", "ReceiptHandle": "r", "Body": entry["MessageBody"]}
    raw["MessageAttributes"] = entry.get("MessageAttributes", {})
    raw["Attributes"] = {"MessageGroupId": entry["MessageGroupId"]} if is_fifo else {}
    message = read_raw(raw, (), ()).message
    assert message.value == datum.value
    assert message.headers == datum.headers
    assert list(message.keys) == (list(datum.keys) or (["-"] if is_fifo else []))


def test_a_batch_has_at_most_ten_messages_and_a_quarter_of_a_mebibyte():
    small = [{"Id": str(n), "MessageBody": "x"} for n in range(25)]
    assert [len(batch) for batch in batches_of(small)] == [10, 10, 5]
    large = [{"Id": str(n), "MessageBody": "x" * 100_000} for n in range(5)]
    assert [len(batch) for batch in batches_of(large)] == [2, 2, 1]
