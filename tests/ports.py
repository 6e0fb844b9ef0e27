"""Ports for servers of tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Returns a port of this machine that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
