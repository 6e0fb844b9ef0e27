"""The example cluster: three nodes for as long as its program runs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ebbflow.nats.locate import open_link
from ebbflow.nats.login import Addresses
from ebbflow.streams import provision
from examples.cluster.nodes import ports_from

pytestmark = pytest.mark.slow

LOGIN = {"EBBFLOW_NATS_USER": "me", "EBBFLOW_NATS_PASSWORD": "12345"}


def start(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "examples.cluster.start", "--folder", str(folder), *options]
    return subprocess.Popen(
        command,
        env={k: v for k, v in os.environ.items() if not k.startswith("EBBFLOW_")} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_ports() -> int:
    """Returns the first of a range of ports that are free for the nodes."""
    while True:
        first = random.randrange(10_000, 28_000)
        try:
            for one in ports_from(first):
                for port in (one.client, one.cluster, one.monitor):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def test_three_nodes_run_and_are_restarted_until_the_program_is_stopped(tmp_path: Path) -> None:
    port = free_ports()
    process = start(tmp_path, "--port", str(port), "--away", "0.5", **LOGIN)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        pids = [int(line.split("process ")[1].split(",")[0]) for line in lines[:3]]
        hosts = ",".join(f"nats://127.0.0.1:{port + node}" for node in range(3))
        assert lines[3] == f"Ready: {hosts}. Ctrl-C stops them.\n"

        with open_link(Addresses.of(hosts.replace("://", "://me:12345@"))) as link:
            config = {"name": "s", "subjects": ["s"], "num_replicas": 3}
            link.run(provision.ensure(link.client, config))

        os.kill(pids[1], signal.SIGKILL)
        restarted = process.stdout.readline()
        assert restarted.startswith("n2 had ended and is back, process ")
        pids.append(int(restarted.split()[-1]))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_cluster_without_a_login_is_not_started(tmp_path: Path) -> None:
    process = start(tmp_path)

    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    assert output == (
        "cluster: The cluster has no login. "
        "Set EBBFLOW_NATS_USER and EBBFLOW_NATS_PASSWORD to one of your choice.\n"
    )
