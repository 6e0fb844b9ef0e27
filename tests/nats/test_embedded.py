"""The embedded server: private, with one owner, restarted after a crash; and unsuitable servers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.disk import DiskWatch
from ebbflow.nats.embedded import EmbeddedServer, FolderWitness, StateFolder
from ebbflow.nats.link import Link, check_version, worker_link
from ebbflow.nats.locate import find_own_server, open_link, start_embedded
from ebbflow.nats.login import Addresses, Login
from ebbflow.streams import provision
from tests.waiting import until


def test_the_server_listens_only_on_loopback_and_only_its_owner_can_read_the_password(tmp_path):
    with start_embedded(tmp_path) as server:
        assert str(server).startswith("nats://127.0.0.1:")
        password = tmp_path / "nats" / "password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "nats" / "nats.conf").stat().st_mode) == 0o600
        assert server.login.password == password.read_text()
        assert server.login.password not in repr(server)
        assert server.login.password not in str(server)


@pytest.mark.parametrize("url", ["nats://user:secret@host:4222", "tls://secret@host"])
def test_a_password_in_a_url_is_never_shown(url):
    assert "secret" not in repr(Addresses.of(url))
    assert "secret" not in str(Addresses.of(url))
    assert "host" in repr(Addresses.of(url))


def test_a_wrong_password_is_refused(tmp_path):
    with (
        start_embedded(tmp_path) as server,
        pytest.raises(SetupError, match="refused the login"),
    ):
        Link(replace(server, login=Login(user="ebbflow", password="guess")))


def test_stored_data_survives_a_kill_of_the_server(tmp_path):
    folder = StateFolder(tmp_path)
    folder.acquire()
    server = EmbeddedServer(folder)
    try:
        with open_link(server.start()) as link:
            config = {"name": "kept", "subjects": ["kept"], "storage": "file"}
            link.run(provision.ensure(link.client, config))
            first = server.pid
            os.kill(first, signal.SIGKILL)
            until(lambda: server.pid != first)
            assert link.run(api.read_state(link.client, "kept")).messages == 0
        assert server.restarts == 1
    finally:
        server.stop()
        folder.release()


def test_a_server_left_by_a_killed_owner_is_killed_before_the_next_one_starts(tmp_path):
    folder = StateFolder(tmp_path)
    folder.acquire()
    orphan = EmbeddedServer(folder)
    orphan.start()
    orphan._stopping.set()  # its owner is gone and no longer watches it
    folder.release()

    with start_embedded(tmp_path) as server, open_link(server):
        assert orphan._process.wait(120) == -signal.SIGKILL
    orphan.stop()


OWNER = """
import sys, time
from pathlib import Path
from ebbflow.nats.locate import start_embedded
with start_embedded(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.guarantee("a-stop-loses-no-work")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_server_ends_with_its_owner_whichever_signal_ends_the_owner(tmp_path, number):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"ready\n"
        family = psutil.Process(owner.pid).children(recursive=True)
        assert "nats-server" in [one.name() for one in family]
        owner.send_signal(number)

    assert psutil.wait_procs(family, timeout=120)[1] == []


def test_a_restarted_server_also_ends_with_its_owner(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        parent = psutil.Process(owner.pid)
        firsts = set(parent.children())
        (server,) = [one for one in firsts if one.name() == "nats-server"]
        server.kill()
        until(lambda: len(set(parent.children()) - firsts) >= 2)  # the server and its watcher
        family = set(parent.children()) - firsts
        owner.kill()

    assert psutil.wait_procs(family, timeout=120)[1] == []


def test_a_stop_leaves_no_process_behind(tmp_path):
    before = set(psutil.Process().children())
    with start_embedded(tmp_path):
        started = set(psutil.Process().children()) - before
        assert len(started) == 2
    assert not [one for one in started if one.is_running()]


def test_small_files_that_hold_garbage_are_rewritten(tmp_path):
    noise = random.Random(7)
    stored_in(tmp_path)
    for name in ("password", "pid", "port", "nats.conf", "../lock"):
        (tmp_path / "nats" / name).write_bytes(noise.randbytes(300))

    with start_embedded(tmp_path) as server, open_link(server) as link:
        assert link.run(api.read_state(link.client, "kept")).messages == 1
        (tmp_path / "lock").write_bytes(noise.randbytes(300))
        with pytest.raises(SetupError, match=r"belongs to a running instance\. Stop"):
            StateFolder(tmp_path).acquire()


def stored_in(folder):
    with start_embedded(folder) as server, open_link(server) as link:
        config = {"name": "kept", "subjects": ["kept"], "storage": "file"}
        link.run(provision.ensure(link.client, config))
        link.run(link.client.publish("kept", b"x"))
        link.flush()
    return folder / "nats" / "jetstream" / "$G" / "streams" / "kept"


@pytest.mark.guarantee("nothing-is-lost")
@pytest.mark.parametrize("file", ["meta.inf", "meta.sum"])
def test_messages_of_a_damaged_stream_are_not_lost_silently(tmp_path, file):
    (stored_in(tmp_path) / file).write_bytes(random.Random(7).randbytes(300))

    with pytest.raises(SetupError) as refused, start_embedded(tmp_path):
        pass
    assert str(refused.value) == (
        f"The stream kept in the state folder {tmp_path} is damaged, and the messages in it cannot "
        "be read. Restore the folder from a copy, or move it away to start over."
    )


def test_the_server_starts_despite_a_stream_whose_creation_was_interrupted(tmp_path):
    stream = stored_in(tmp_path)
    (stream / "meta.sum").write_bytes(b"")
    for block in stream.glob("msgs/*"):
        block.unlink()

    with start_embedded(tmp_path) as server, open_link(server) as link:
        config = {"name": "kept", "subjects": ["kept"], "storage": "file"}
        link.run(provision.ensure(link.client, config))


def test_the_error_names_a_file_in_the_state_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "nats" / "password").mkdir(parents=True)
    with pytest.raises(SetupError) as refused, start_embedded(tmp_path):
        pass
    assert str(refused.value) == (
        f"Cannot write to the state folder {tmp_path}: Is a directory "
        f"({tmp_path / 'nats' / 'password'}). Choose another one with --state DIR."
    )


def test_the_error_names_a_folder_without_write_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SetupError) as refused:
        StateFolder(tmp_path).make_writable(tmp_path / "logs")
    assert str(refused.value) == (
        f"Cannot write to the state folder {tmp_path}: Permission denied ({tmp_path / 'logs'}). "
        "Choose another one with --state DIR."
    )


def test_a_folder_has_one_owner_at_a_time(tmp_path):
    with start_embedded(tmp_path), pytest.raises(SetupError) as refused, start_embedded(tmp_path):
        pass
    assert str(refused.value) == (
        f"The state folder {tmp_path} belongs to a running instance (process {os.getpid()}). "
        "Stop that one first, or choose another folder with --state DIR."
    )


def test_an_unreachable_server_is_reported_at_once_and_clearly():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(SetupError, match=f"No NATS server answers at nats://127.0.0.1:{port}"):
            Link(Addresses.of(f"nats://user:secret@127.0.0.1:{port}"))
        assert time.monotonic() - began < 10


def test_an_invalid_url_is_rejected_at_once_and_clearly():
    with pytest.raises(SetupError) as refused:
        find_own_server("http://somewhere")
    assert str(refused.value) == (
        "'http://somewhere' is not a NATS URL; write for example nats://localhost:4222. "
        "Correct --nats or EBBFLOW_NATS_URL."
    )


@contextmanager
def announcing(info):
    """A port where a server introduces itself as ``info`` and answers pings."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb", buffering=0) as stream:
                stream.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
                while line := stream.readline():
                    if line.startswith(b"PING"):
                        stream.write(b"PONG\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield Addresses.of(f"nats://127.0.0.1:{listening.getsockname()[1]}")


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (
            {"version": "2.11.9", "jetstream": True},
            "is version 2.11.9; Ebbflow needs 2.12 or newer",
        ),
        ({"version": "2.15.1"}, "runs without JetStream"),
    ],
)
def test_a_server_that_is_too_old_or_lacks_jetstream_is_rejected(info, problem):
    with announcing(info | {"max_payload": 1048576, "headers": True}) as server:
        link = Link(server)
        try:
            with pytest.raises(SetupError, match=problem):
                check_version(link)
        finally:
            link.close()


def test_a_deleted_state_folder_is_noticed_and_its_disk_is_watched_without_a_traceback(tmp_path):
    state = tmp_path / "state"
    with start_embedded(state) as server, open_link(server):
        witness = FolderWitness(state)
        witness.check()
        watch = DiskWatch(state / "nats", None, lambda _: None)  # type: ignore[arg-type]
        shutil.rmtree(state, ignore_errors=True)  # the server may write to it meanwhile
        with pytest.raises(SetupError, match=f"folder {state} was deleted while the pipeline ran"):
            witness.check()
        shutil.rmtree(state, ignore_errors=True)
        watch.look()
        (state / "nats").mkdir(parents=True, exist_ok=True)
        (state / "lock").touch()
        with pytest.raises(SetupError, match="The messages that waited in it are lost"):
            witness.check()


def test_a_worker_does_not_try_forever_to_reach_the_servers_of_ended_runs(tmp_path):
    with start_embedded(tmp_path / "first") as server:
        lost = worker_link(server)
    until(lambda: not lost.client.is_connected)
    with start_embedded(tmp_path / "second") as server:
        try:
            kept = worker_link(server)
            assert not lost._thread.is_alive()
            assert worker_link(server) is kept
        finally:
            kept.close()
