"""A subject that the login may not use is named in an error at once, wherever it is used."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbflow.domain.errors import AccessError, PermanentPublishError, SetupError
from ebbflow.engine import frames
from ebbflow.engine.position import Mark
from ebbflow.nats import api
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.locate import open_link
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_last
from ebbflow.publishing import Login, Outgoing, Publisher
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.reader import FrameReader
from tests.nats.securing import nats_server, reload
from tests.waiting import until

NAMES = Names("p")
STEP = "Give it the permissions that are printed by: ebbflow permissions SPEC"


class Guarded:
    """A server with a login that may do everything except what a test denies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0

    def config(self, publish: Sequence[str] = (), subscribe: Sequence[str] = ()) -> str:
        denied = {"publish": {"deny": list(publish)}, "subscribe": {"deny": list(subscribe)}}
        return (
            'authorization { users: [ { user: "admin", password: "a" }, { user: "me", '
            f'password: "m", permissions: {json.dumps(denied)} }} ] }}\n'
        )

    @contextmanager
    def denying(
        self, publish: Sequence[str] = (), subscribe: Sequence[str] = ()
    ) -> Iterator[Guarded]:
        """Serve, with a stream on ``orders.*`` and the streams of a vertex."""
        with nats_server(self.folder, self.config(publish, subscribe)) as self.port:
            with open_link(self.as_("admin", "a")) as link:
                for config in (
                    {"name": "ORDERS", "subjects": ["orders.*", "Orders.*"]},
                    catalogue.buffer_config(NAMES, "v", 0, 100),
                    catalogue.positions_config(NAMES),
                ):
                    link.run(provision.ensure(link.client, config))
            yield self

    def as_(self, user: str, password: str) -> Addresses:
        login = Login(user=user, password=password)
        return Addresses.of(f"nats://127.0.0.1:{self.port}", login)

    @property
    def me(self) -> Addresses:
        return self.as_("me", "m")

    def publisher(self, **options: object) -> Publisher:
        return Publisher(str(self.me), login=self.me.login, **options)

    def denial(self, verb: str, subject: str) -> str:
        return f"NATS at {self.me} does not let this login {verb} to {subject}. {STEP}"


@pytest.fixture
def server(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@contextmanager
def at_once(error: type[Exception], text: str) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(error) as caught:
        yield
    assert time.monotonic() - began < 10, "it waited for an answer"
    assert str(caught.value).startswith(text), str(caught.value)


# --- publishing ---------------------------------------------------------------------------------


@pytest.mark.guarantee("denied-subjects-are-named")
def test_publishing_to_a_denied_subject_is_rejected_without_a_retry(server):
    text = "orders.no: refused by the server after 1 attempt in "
    with server.denying(publish=["orders.no"]), server.publisher(ack_wait=30) as publisher:
        with at_once(PermanentPublishError, text) as caught:
            publisher.publish("orders.no", b"", retry_attempts=-1)
        with pytest.raises(PermanentPublishError) as caught:
            publisher.publish("orders.no", b"")
        assert caught.value.detail == "the login may not publish to it"
        assert publisher.publish("orders.yes", b"").seq == 1


def test_messages_before_a_denied_one_are_known_to_be_stored(server):
    with server.denying(publish=["orders.no"]), server.publisher() as publisher:
        messages = [Outgoing(f"orders.{n}", b"") for n in range(50)]
        messages.insert(25, Outgoing("orders.no", b""))
        with pytest.raises(PermanentPublishError) as caught:
            publisher.publish_many(messages, window=10)
        assert caught.value.subject == "orders.no"
        stored = [ack is not None for ack in caught.value.acks]
        assert stored[:25] == [True] * 25
        assert not stored[25]
        assert all(stored[26:])


def test_a_subject_that_differs_only_in_case_from_a_denied_one_is_published(server):
    with server.denying(publish=["Orders.X"]), open_link(server.me) as link:

        async def both() -> list[object]:
            calls = [publish(link.client, name, b"") for name in ("orders.x", "Orders.X")] * 5
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = link.run(both())
    assert [isinstance(outcome, PermanentPublishError) for outcome in outcomes] == [False, True] * 5


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a'b", "ä"])
def test_a_denied_subject_with_unusual_characters_is_named(server, name):
    denied = f"orders.{name}"
    with (
        server.denying(publish=["orders.*"]),
        server.publisher(ack_wait=30) as publisher,
        at_once(PermanentPublishError, f"{denied}: refused by the server"),
    ):
        publisher.publish(denied, b"", attempt_timeout="30s")


@pytest.mark.guarantee("denied-subjects-are-named")
def test_a_publisher_without_an_inbox_reports_that_the_message_may_be_stored(server):
    with server.denying(subscribe=["_INBOX.>"]):
        with server.publisher(ack_wait=30) as publisher:
            with at_once(PermanentPublishError, "orders.x: refused by the server") as caught:
                publisher.publish("orders.x", b"", retry_attempts=-1)
            with pytest.raises(PermanentPublishError) as caught:
                publisher.publish("orders.x", b"")
        assert caught.value.detail.startswith("the login may not subscribe to _INBOX.")
        assert caught.value.detail.endswith(
            ".*, where the answer would come; 1 got no answer, so it may be stored all the same"
        )
        with server.publisher(inbox_prefix="_INBOX_me") as publisher:
            assert publisher.publish("orders.x", b"").stream == "ORDERS"


# --- pipelines ----------------------------------------------------------------------------------


@pytest.mark.guarantee("denied-subjects-are-named")
def test_a_denied_jetstream_call_is_not_repeated(server):
    call = "$JS.API.STREAM.CREATE.ebb_p_v_0"
    config = catalogue.buffer_config(NAMES, "v", 0, 100)
    with (
        server.denying(publish=[call]),
        open_link(server.me) as link,
        at_once(AccessError, server.denial("publish", call)),
    ):
        link.run(provision.ensure(link.client, config))


def test_the_first_call_names_a_denied_inbox(server):
    with server.denying(subscribe=["_INBOX.>"]), open_link(server.me) as link:
        denial = server.denial("subscribe", "_INBOX.").removesuffix(f". {STEP}")
        for _ in range(2):
            with at_once(AccessError, denial):
                link.run(api.list_streams(link.client, ""))


@pytest.mark.guarantee("denied-subjects-are-named")
def test_a_denied_subscription_fails_the_next_request(server):
    """Such as the subject on which tasks learn to stop: without it a run could not end."""
    subject = NAMES.control_subject
    with server.denying(subscribe=[subject]), open_link(server.me) as link:

        async def listen_and_claim() -> None:
            await link.client.subscribe(subject)
            await PositionStore(link.client, NAMES, "v", 0).claim()

        with at_once(AccessError, server.denial("subscribe", subject)):
            link.run(listen_and_claim())


def test_a_denied_position_write_is_named(server):
    subject = "$KV.ebb_p_positions.v.0"
    with (
        server.denying(publish=[subject]),
        open_link(server.me) as link,
        at_once(PermanentPublishError, f"{subject}: refused by the server"),
    ):
        link.run(PositionStore(link.client, NAMES, "v", 0).claim())


def test_a_denied_direct_read_is_named(server):
    call = "$JS.API.DIRECT.GET.KV_ebb_p_positions"
    with server.denying(publish=[call]), open_link(server.me) as link:
        link.run(PositionStore(link.client, NAMES, "v", 0).claim())
        with at_once(AccessError, server.denial("publish", call)):
            link.run(read_last(link.client, "KV_ebb_p_positions", "$KV.ebb_p_positions.>"))


def reader(link: Link, wake: threading.Event) -> FrameReader:
    return FrameReader(link, NAMES.buffer("v", 0), NAMES.buffer_subject("v", 0), Mark(), wake)


def test_a_reader_that_may_not_create_a_consumer_reports_it(server):
    call = "$JS.API.CONSUMER.CREATE.ebb_p_v_0.*"
    with (
        server.denying(publish=[call]),
        open_link(server.me) as link,
        at_once(AccessError, server.denial("publish", call).partition("*")[0]),
    ):
        reader(link, threading.Event())


@pytest.mark.guarantee("denied-subjects-are-named")
def test_a_reader_that_may_not_request_messages_reports_it(server):
    call = "$JS.API.CONSUMER.MSG.NEXT.ebb_p_v_0.*"
    with server.denying(publish=[call]), open_link(server.me) as link:
        wake = threading.Event()
        following = reader(link, wake)
        assert wake.wait(120)
        with at_once(AccessError, server.denial("publish", call).partition("*")[0]):
            following.take(1)
        following.close()


def test_a_reader_that_may_not_purge_reports_it(server):
    call = "$JS.API.STREAM.PURGE.ebb_p_v_0"
    with server.denying(publish=[call]), open_link(server.me) as link:
        frame = frames.encode(frames.batch_of({"id": ["1"], "value": [b""]}, 1))
        link.run(publish(link.client, NAMES.buffer_subject("v", 0), frame, retry=BUFFER))
        wake = threading.Event()
        following = reader(link, wake)
        until(lambda: following.take(10))
        wake.clear()
        following.forget(Mark(1))
        assert wake.wait(120)
        with at_once(AccessError, server.denial("publish", call)):
            following.take(10)
        following.close()


# --- permissions that change while a connection is up -------------------------------------------


def test_a_revoked_permission_is_named_and_a_restored_one_is_used(server):
    with server.denying(), server.publisher(ack_wait=30) as publisher:
        assert publisher.publish("orders.x", b"").seq == 1
        reload(server.folder, server.config(publish=["orders.x"]))
        with at_once(PermanentPublishError, "orders.x: refused by the server"):
            publisher.publish("orders.x", b"")
        reload(server.folder, server.config())
        assert publisher.publish("orders.x", b"").seq == 2


def test_a_worker_reconnects_once_its_inbox_is_permitted_again(server):
    with server.denying():
        link = worker_link(server.me)
        link.run(api.list_streams(link.client, ""))
        reload(server.folder, server.config(subscribe=["_INBOX.>"]))
        until(lambda: link.client.denied is not None)
        with pytest.raises(AccessError, match="subscribe to _INBOX"):
            link.run(api.list_streams(link.client, ""))
        reload(server.folder, server.config())
        again = worker_link(server.me)
        assert again is not link
        assert worker_link(server.me) is again
        assert "ORDERS" in again.run(api.list_streams(again.client, ""))
        again.close()


def test_a_link_reports_that_its_login_was_revoked(server):
    with server.denying(), open_link(server.me) as link:
        link.check()
        reload(server.folder, server.config().replace('"me"', '"you"'))
        until(lambda: link.client.ended is not None)
        with pytest.raises(SetupError) as caught:
            link.check()
        assert re.fullmatch(
            f"NATS at {server.me} ended the connection: .*authorization.*. "
            r"See whether the login is still valid, then start again\.",
            str(caught.value),
            re.IGNORECASE,
        )


def test_nothing_is_kept_of_completed_requests(server):
    with server.denying(publish=["orders.no"]), open_link(server.me) as link:

        async def many() -> list[object]:
            calls = [publish(link.client, f"orders.{n % 7}", b"") for n in range(500)]
            calls += [publish(link.client, "orders.no", b"") for _ in range(20)]
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = link.run(many())
        assert [type(outcome).__name__ for outcome in outcomes] == ["Ack"] * 500 + [
            "PermanentPublishError"
        ] * 20
        assert link.client._listeners == {}
        assert link.client._requests._waiting == link.client._requests._volleys == {}
