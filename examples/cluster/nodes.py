"""The three nodes, as processes on this machine. All of them use ``node.conf``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ebbflow import SetupError

CONFIG = Path(__file__).parent / "node.conf"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Where one node listens."""

    client: int
    cluster: int
    monitor: int


class Node:
    """One server. It may be stopped in any way and started again; its folder stays."""

    def __init__(self, name: str, folder: Path, ports: Ports, environment: dict[str, str]) -> None:
        self.name = name
        self.ports = ports
        self.log = folder / f"{name}.log"
        self._environment = os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.running:
            return
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [_find_server(), "-c", str(CONFIG)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever started it, who stops it in order
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait for its end; one that does not listen is killed."""
        if self._process is None:
            return
        self.send(number)
        self.send(signal.SIGCONT)  # one that was halted hears it, too
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def healthy(self) -> bool:
        """Whether it has caught up with everything it holds."""
        try:
            address = f"http://{HOST}:{self.ports.monitor}/healthz"
            with urllib.request.urlopen(address, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class Nodes:
    """A cluster of three. The user and the password are for clients and nodes alike."""

    def __init__(self, folder: Path, user: str, password: str, ports: Sequence[Ports]) -> None:
        if not user or not password:
            raise SetupError(
                "The cluster has no login.",
                "Set EBBFLOW_NATS_USER and EBBFLOW_NATS_PASSWORD to one of your choice.",
            )
        self.folder = folder
        self._user, self._password = user, password
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        routes = json.dumps([self._url(one.cluster) for one in ports])
        self.all = [
            self._node(f"n{number}", one, routes) for number, one in enumerate(ports, start=1)
        ]

    def _node(self, name: str, ports: Ports, routes: str) -> Node:
        environment = {
            "NODE_NAME": name,
            "NODE_LISTEN": f"{HOST}:{ports.client}",
            "NODE_CLUSTER": f"{HOST}:{ports.cluster}",
            "NODE_HTTP": f"{HOST}:{ports.monitor}",
            "NODE_STORE": str(self.folder.resolve() / name),
            "EBBFLOW_NATS_USER": self._user,
            "EBBFLOW_NATS_PASSWORD": self._password,
        }
        # In quotes, or the server takes a password such as 12345 or $abc for something else.
        quoted = {key: json.dumps(value) for key, value in environment.items()}
        return Node(name, self.folder, ports, quoted | {"CLUSTER_ROUTES": routes})

    @property
    def url(self) -> str:
        """All nodes, with the login, as ``--nats`` takes them."""
        return ",".join(map(self.url_of, self.all))

    def url_of(self, node: Node) -> str:
        """One node; a client that connects to it hears of the others from it."""
        return self._url(node.ports.client)

    def _url(self, port: int) -> str:
        user, password = quote(self._user, safe=""), quote(self._password, safe="")
        return f"nats://{user}:{password}@{HOST}:{port}"

    def start(self) -> None:
        for node in self.all:
            node.start()

    def stop(self) -> None:
        for node in self.all:
            node.send(signal.SIGTERM)
        for node in self.all:
            node.stop()

    def wait_until_healthy(self, seconds: float = 60) -> None:
        """Return when all nodes are up and have caught up with each other."""
        deadline = time.monotonic() + seconds
        while not all(node.healthy() for node in self.all):
            for node in self.all:
                if not node.running:
                    raise SetupError(f"Node {node.name} has ended.", f"Its log is {node.log}.")
            if time.monotonic() > deadline:
                raise SetupError("The cluster did not get ready.", f"Logs are in {self.folder}.")
            time.sleep(0.1)


def _find_server() -> str:
    """Returns the nats-server that was installed with Ebbflow, or else the one on the path."""
    installed = Path(sys.executable).with_name("nats-server")
    return str(installed) if installed.exists() else shutil.which("nats-server") or "nats-server"


def ports_from(first: int) -> list[Ports]:
    """Three in a row for clients, and as far apart as 4222, 6222 and 8222 for the other two."""
    return [Ports(port, port + 2000, port + 4000) for port in range(first, first + 3)]
