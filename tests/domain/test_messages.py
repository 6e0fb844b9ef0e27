"""What user code receives and returns: conveniences of ``Datum``, ``Message`` and ``Response``."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from ebbflow import Datum, Message, NackOptions, Response
from tests.engine.sample_rows import some


class Order(BaseModel):
    id: int


def test_the_value_of_a_datum_can_be_read_as_text_and_as_json():
    assert Datum("ä".encode()).text == "ä"
    assert Datum(b'{"id": 7}').json() == {"id": 7}
    with pytest.raises(UnicodeDecodeError):
        _ = Datum(b"\xff").text
    with pytest.raises(ValueError, match="Expecting"):
        Datum(b"{").json()


def test_a_datum_made_in_a_test_has_every_field_that_user_code_may_read():
    before = datetime.now(UTC)
    datum = Datum(b"x", keys=["a", "b"], retries=2)
    assert datum.keys == ("a", "b")
    assert datum.retries == 2
    assert before <= datum.event_time <= datetime.now(UTC)
    assert datum.event_time == datum.event_time
    assert Datum(b"x", event_time=before).event_time == before


def test_datums_are_equal_if_all_their_fields_are():
    assert Datum(b"x", id="1", keys=["a"]) == Datum(b"x", id="1", keys=("a",))
    assert len({Datum(b"x"), Datum(b"x")}) == 1
    now = datetime.now(UTC)
    for other in (
        Datum(b"y"),
        Datum(b"x", id="1"),
        Datum(b"x", keys=["a"]),
        Datum(b"x", headers={"h": "1"}),
        Datum(b"x", deliveries=2),
        Datum(b"x", retries=1),
        Datum(b"x", event_time=now),
        b"x",
    ):
        assert Datum(b"x") != other


def test_a_datum_of_a_run_equals_one_made_with_the_same_fields():
    (datum,) = some("a").data()
    fields = ("keys", "event_time", "watermark", "headers", "metadata", "deliveries", "retries")
    same = Datum(datum.value, id="a", **{name: getattr(datum, name) for name in fields})
    assert (datum.id, datum.retries) == ("a", 0)
    assert datum == same or datum._get("event_time") is None


def test_a_message_can_be_made_from_json():
    message = Message.json({"id": 7}, keys=("k",), tags=["big"])
    assert (message.value, message.keys, message.tags) == (b'{"id": 7}', ("k",), ["big"])
    assert Message.json(Order(id=7)).value == b'{"id":7}'
    for wrong in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            Message.json(wrong)


def test_a_response_for_a_row_needs_no_id_but_all_its_other_arguments():
    assert Response.nack(reason="busy", delay=timedelta(seconds=5)).nack_options == NackOptions(
        5_000, None, "busy"
    )
    for incomplete in (Response.failure, Response.serve, Response.unavailable):
        with pytest.raises(ValueError, match="for a row"):
            incomplete("only one argument")
