"""What is rejected before anything is sent, and what is accepted; no server is needed."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.nats.login import Addresses
from ebbflow.publishing import AsyncPublisher, Login, Outgoing, Publisher, PublishOptions

SECONDS = "must be a number of seconds above 0, not"
NO_URL = "is not a NATS URL; write for example nats://localhost:4222"
DIFFERENT = "the URLs have different logins; give the same one with all of them"
NAMES = "subject must be names joined by dots, without spaces, * or >, not"


@contextmanager
def refusal(text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as refused:
        yield refused


@pytest.mark.parametrize("name", ["retry_wait", "ack_wait"])
@pytest.mark.parametrize("value", [0, -1, -0.1, math.nan, "1s", True, timedelta(seconds=1)])
def test_times_are_seconds_above_zero(name, value):
    with refusal(f"{name} {SECONDS} {value!r}"):
        PublishOptions(**{name: value})


def test_the_timeout_of_an_attempt_is_a_duration():
    assert PublishOptions(attempt_timeout="250ms").to_retry().attempt_timeout == 0.25
    with refusal("attempt_timeout must be longer than 0"):
        PublishOptions(attempt_timeout="0s")
    with refusal('1 has no unit; write "1s" or timedelta(seconds=1)'):
        PublishOptions(attempt_timeout=1)


@pytest.mark.parametrize("value", [-2, 1.5, "2", True, None])
def test_attempts_are_a_count_or_endless(value):
    rule = "must be a whole number from 0, or -1 to continue until the deadline"
    with refusal(f"retry_attempts {rule}, not {value!r}"):
        PublishOptions(retry_attempts=value)


def test_other_invalid_options_are_rejected():
    now = datetime.now(UTC)
    for options, expected in [
        (
            {"ack_wait": 1, "deadline": now},
            "ack_wait and deadline both bound the call; give one of them",
        ),
        ({"deadline": 5.0}, "deadline must be a datetime with a time zone, not 5.0"),
        ({"wait_for_room": 1}, "wait_for_room must be True or False, not 1"),
        ({"retry_wait": math.inf}, f"retry_wait {SECONDS} inf"),
    ]:
        with refusal(expected):
            PublishOptions(**options)
    with pytest.raises(ValueError, match="with a time zone"):
        PublishOptions(deadline=now.replace(tzinfo=None))


@pytest.mark.parametrize("kind", [Publisher, AsyncPublisher])
def test_publishers_reject_invalid_options_when_they_are_created(kind):
    with pytest.raises(ValueError, match="retry_wait"):
        kind("nats://localhost", retry_wait=-1)
    with pytest.raises(TypeError, match="retries"):
        kind("nats://localhost", retries=3)


def test_defaults_are_those_of_adr_22():
    retry = PublishOptions().to_retry()
    assert (retry.wait, retry.attempts, retry.ack_wait, retry.attempt_timeout) == (0.25, 2, 5, 1)
    assert PublishOptions(ack_wait=math.inf).to_retry().ack_wait == math.inf


def test_a_new_time_limit_replaces_the_old_one():
    soon = datetime.now(UTC) + timedelta(seconds=60)
    changed = PublishOptions(ack_wait=3).with_changes({"deadline": soon})
    assert (changed.ack_wait, changed.deadline) == (None, soon)
    assert 59 < changed.to_retry().ack_wait <= 60
    back = changed.with_changes({"ack_wait": 2, "retry_wait": 1})
    assert (back.ack_wait, back.deadline, back.retry_wait) == (2, None, 1)
    assert changed.with_changes({"retry_wait": 1}).deadline == soon


@pytest.mark.parametrize(
    "subject",
    [
        *("", " ", "a b", "a\r\nPUB b", "a\tb", "a\n", "a\x00b", "\ud800"),
        *(".a", "a.", "a..b", "*", "a.*", "a.*.b", "a.>", ">"),
        *(5, None, b"a"),
    ],
)
def test_an_invalid_subject_is_rejected(subject):
    with refusal(f"{NAMES} {subject!r}"):
        Outgoing(subject, b"x")


@pytest.mark.parametrize("subject", ["a", "a.b-c_d.1", "$KV.bucket.key", "a*b.c>", "büro.tür"])
def test_every_literal_subject_is_accepted(subject):
    assert Outgoing(subject, b"").subject == subject


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"data": "x"}, "data must be bytes, not str"),
        ({"data": bytearray(b"x")}, "data must be bytes, not bytearray"),
        ({"headers": ["a"]}, "headers must be a mapping, not list"),
        ({"headers": {"a b": "c"}}, "'a b' is not a header name"),
        ({"headers": {"a\r\n": "c"}}, r"'a\r\n' is not a header name"),
        ({"headers": {"": "c"}}, "'' is not a header name"),
        ({"headers": {"a": "b\r\nc: d"}}, r"header a must be text on one line, not 'b\r\nc: d'"),
        ({"headers": {"a": 5}}, "header a must be text on one line, not 5"),
        ({"msg_id": ""}, "msg_id must be text on one line, not ''"),
        ({"msg_id": "a\nb"}, r"msg_id must be text on one line, not 'a\nb'"),
        (
            {"headers": {"Nats-Msg-Id": "a"}, "msg_id": "b"},
            "msg_id is 'b', but the header Nats-Msg-Id is 'a'",
        ),
    ],
)
def test_fields_that_could_not_be_sent_unchanged_are_rejected(fields, expected):
    with refusal(expected):
        Outgoing(**({"subject": "s", "data": b"x"} | fields))


def test_an_id_is_given_or_generated_and_the_callers_headers_stay_unchanged():
    headers = {"a": "b"}
    one, two = Outgoing("s", b"", headers), Outgoing("s", b"", headers)
    assert one.msg_id != two.msg_id
    assert headers == {"a": "b"}
    assert one.headers == {"a": "b", "Nats-Msg-Id": one.msg_id}
    assert Outgoing("s", b"", {"Nats-Msg-Id": "mine"}).msg_id == "mine"
    assert Outgoing("s", b"", msg_id="mine").headers == {"Nats-Msg-Id": "mine"}


def test_urls_may_be_a_list_or_separated_by_commas_and_their_login_is_extracted():
    login = "nats://me:s%40crt@"
    urls = ("nats://a:1", "nats://b:2")
    for given in (f"{login}a:1,{login}b:2", [f"{login}a:1", "b:2"], (f"{login}a:1, nats://b:2",)):
        found = Addresses.of(given)
        assert (found.urls, found.login) == (urls, Login(user="me", password="s@crt"))
        assert str(found) == "nats://a:1, nats://b:2"
        assert "s@crt" not in repr(found)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", f"'' {NO_URL}"),
        ("http://me:secret@a", f"'a' {NO_URL}"),
        ("nats://a:port", f"'nats://a:port' {NO_URL}"),
        ("nats://a,,nats://b", f"'' {NO_URL}"),
        ([], "url must be a NATS URL or a list of them"),
        ([5], "url must be a NATS URL or a list of them"),
        ("nats://x:y@a,nats://z:y@b", DIFFERENT),
    ],
)
def test_an_invalid_url_is_rejected_without_showing_its_password(url, expected):
    with refusal(expected):
        Publisher(url)
