"""``ebbflow serve-udf`` as a process: found, served, stopped, failed."""

import collections
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.numaflow.proto import map_pb2, sink_pb2
from tests.numaflow.served import map_requests, sink_requests, values
from tests.waiting import until

FUNCTIONS = """
from ebbflow import Message, Response, Source


def upper(datum):
    if datum.value == b"raise":
        raise ValueError("boom")
    return Message(datum.value.upper())


class Store:
    def __call__(self, data):
        return [Response.ok(datum.id) for datum in data]

    def close(self):
        print("closed", flush=True)
"""


@contextmanager
def process(folder: Path, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the command; the context begins once its server-info file exists."""
    (folder / "functions.py").write_text(FUNCTIONS)
    command = [sys.executable, "-m", "ebbflow", "serve-udf", *arguments, "--folder", str(folder)]
    started = subprocess.Popen(
        command, cwd=folder, text=True, env=os.environ | env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: started.poll() is not None or [*folder.glob("*-server-info")])
        yield started
    finally:
        started.kill()
        started.communicate()


def stream(folder: Path, socket: str, method: str, requests: Any) -> list[bytes]:
    with grpc.insecure_channel(f"unix://{folder}/{socket}") as channel:
        return list(channel.stream_stream(method)(requests, timeout=120))


def test_a_container_is_served_as_the_type_that_numaflow_sets(tmp_path: Path) -> None:
    env = {"NUMAFLOW_UD_CONTAINER_TYPE": "fb-udsink"}
    with process(tmp_path, "functions:Store", **env) as started:
        method = "/sink.v1.Sink/SinkFn"
        responses = stream(tmp_path, "fb-sink.sock", method, sink_requests(*values("a")))
        assert sink_pb2.SinkResponse.FromString(responses[1]).results[0].id == "m0"
        started.send_signal(signal.SIGTERM)
        out, _ = started.communicate(timeout=300)
    assert started.returncode == 0
    assert out == "closed\n"
    assert not (tmp_path / "fb-sink.sock").exists()


def test_open_streams_continue_after_sigterm(tmp_path: Path) -> None:
    refused = threading.Event()

    def slowly() -> Iterator[bytes]:
        handshake, request = map_requests(*values("a"))
        yield handshake
        assert refused.wait(120)
        yield request

    with process(tmp_path, "functions:upper") as started:
        with grpc.insecure_channel(f"unix://{tmp_path}/map.sock") as channel:
            responses = channel.stream_stream("/map.v1.Map/MapFn")(slowly(), timeout=120)
            assert map_pb2.MapResponse.FromString(next(responses)).handshake.sot
            started.send_signal(signal.SIGTERM)
            wait_until_refused(channel)
            refused.set()
            (last,) = map(map_pb2.MapResponse.FromString, responses)
        assert last.results[0].value == b"A"
        assert started.wait(120) == 0


def wait_until_refused(channel: grpc.Channel) -> None:
    """Returns when the server accepts no more calls."""
    is_ready = channel.unary_unary("/map.v1.Map/IsReady")
    with pytest.raises(grpc.RpcError):
        collections.deque((is_ready(b"", timeout=5) for _ in itertools.count()), maxlen=0)


def test_an_error_in_the_function_is_reported_and_ends_the_command(tmp_path: Path) -> None:
    with process(tmp_path, "functions:upper", "--kind", "map") as started:
        with pytest.raises(grpc.RpcError, match=r"UDF_EXECUTION_ERROR\(udf\): ValueError: boom"):
            stream(tmp_path, "map.sock", "/map.v1.Map/MapFn", map_requests(*values("raise")))
        _, errors = started.communicate(timeout=300)
    assert started.returncode == 3
    assert 'raise ValueError("boom")' in errors
    assert errors.rstrip().endswith("UDF_EXECUTION_ERROR(udf): ValueError: boom")


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve-udf", *arguments], env=env)
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def test_mistakes_are_explained_with_the_next_step(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "functions_here.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    code, text = run("functions_here:nothing")
    assert (code, "no 'nothing'" in text) == (3, True), text
    code, text = run("functions_here:upper", "--kind", "sink", "--mode", "unary")
    assert (code, "a sink has batch, columnar, pandas" in text) == (2, True), text
    code, text = run("functions_here:upper", env={"NUMAFLOW_UD_CONTAINER_TYPE": "udsi"})
    assert (code, "Say what it is with --kind: map" in text) == (3, True), text
    code, text = run("functions_here:upper", "--folder", str(tmp_path / ("x" * 120)))
    assert (code, "Give a shorter --folder" in text) == (3, True), text
    (tmp_path / "file").touch()
    code, text = run("functions_here:upper", "--folder", str(tmp_path / "file"))
    assert (code, "Give another with --folder" in text) == (3, True), text
