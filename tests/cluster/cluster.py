"""A real cluster of three NATS nodes, from ``examples/cluster``, with ways to damage it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.streams import provision
from examples.cluster.nodes import Node, Nodes, Ports
from tests.processes import frozen
from tests.waiting import until

# Characters that are valid in a password but need escaping in a configuration or a URL.
USER, PASSWORD = "tester", "0$a b@c/d"


def free_ports() -> list[Ports]:
    """Ports that are free now, three for each of three nodes."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(9)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        found = [probe.getsockname()[1] for probe in probes]
    return [Ports(*found[start : start + 3]) for start in (0, 3, 6)]


class Cluster(Nodes):
    """Three nodes, which of them leads what, and ways to damage them."""

    link: Link

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, USER, PASSWORD, free_ports())

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        """Runs all nodes, with a link to whichever is up, and stops them in the end."""
        try:
            self.start()
            self.wait_until_healthy()
            with self.linked() as self.link:
                yield self
        finally:
            self.stop()

    @contextlib.contextmanager
    def linked(self, node: Node | None = None) -> Iterator[Link]:
        link = Link(Addresses.of(self.url_of(node) if node else self.url))
        try:
            yield link
        finally:
            link.close()

    def make(self, config: dict[str, Any]) -> str:
        """Make a stream, wait until all nodes have it, and return its name."""
        name: str = config["name"]
        self.link.run(provision.ensure(self.link.client, config))
        self.wait_until_current(name)
        return name

    # --- leaders --------------------------------------------------------------------------------

    def info(self, stream: str) -> dict[str, Any]:
        return self.link.run(api.call(self.link.client, f"STREAM.INFO.{stream}"))

    def leader_of(self, stream: str) -> Node:
        name = self.info(stream)["cluster"]["leader"]
        return next(node for node in self.all if node.name == name)

    def followers_of(self, stream: str) -> list[Node]:
        leader = self.leader_of(stream)
        return [node for node in self.all if node is not leader]

    def wait_until_current(self, stream: str) -> None:
        """Return when no replica of the stream lags behind."""

        def current() -> bool:
            replicas = self.info(stream)["cluster"].get("replicas", ())
            return all(one["current"] and not one.get("lag") for one in replicas)

        until(current)

    def step_down(self, stream: str) -> None:
        """Have the leader step down gracefully."""
        self.link.run(api.call(self.link.client, f"STREAM.LEADER.STEPDOWN.{stream}"))

    def hand_over(self, stream: str, node: Node) -> None:
        """Have the stream led by the node."""
        call, body = f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": node.name}}
        if self.leader_of(stream) is not node:
            self.link.run(api.call(self.link.client, call, body))
            until(lambda: self.leader_of(stream) is node)

    def wait_for_direct_reads(self, stream: str) -> None:
        """Followers answer direct reads about two seconds after the stream was created."""

        def answering(node: Node) -> bool:
            place = f"http://127.0.0.1:{node.ports.monitor}/subsz"
            question = f"subs=1&limit=100000&test=$JS.API.DIRECT.GET.{stream}"
            with urllib.request.urlopen(f"{place}?{question}", timeout=5) as answer:
                found = json.load(answer).get("subscriptions_list", [])
            return any(one["subject"] == f"$JS.API.DIRECT.GET.{stream}" for one in found)

        for node in self.all:
            until(lambda node=node: answering(node))

    # --- damage ---------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        node.stop(signal.SIGKILL)

    @contextlib.contextmanager
    def halted(self, *nodes: Node) -> Iterator[None]:
        """The nodes are frozen, with all connections open, and continue afterwards."""
        with contextlib.ExitStack() as stack:
            for node in nodes:
                stack.enter_context(frozen(node.pid))
            yield

    def heal(self) -> None:
        """Bring all nodes back up and wait until they have caught up."""
        for node in self.all:
            node.send(signal.SIGCONT)
            node.start()
        self.wait_until_healthy()
