"""Contestants that are separate programs, as people write them without Ebbflow.

Each is started as ``python -m`` with the names of the streams; the login is in the environment.
"""

from __future__ import annotations

import os

import nats
from nats.aio.client import Client

from ebbflow.nats.login import Addresses, Login

URL, USER, PASSWORD = "BENCH_URL", "BENCH_USER", "BENCH_PASSWORD"


def environment(server: Addresses) -> dict[str, str]:
    """Returns the variables that a worker needs to connect."""
    login = {USER: server.login.user or "", PASSWORD: server.login.password or ""}
    return {**os.environ, **login, URL: server.urls[0]}


def server() -> Addresses:
    """Returns the server to connect to, on the worker."""
    login = Login(user=os.environ[USER] or None, password=os.environ[PASSWORD] or None)
    return Addresses((os.environ[URL],), login)


async def connected() -> Client:
    """A plain client, on the worker."""
    login = {"user": os.environ[USER] or None, "password": os.environ[PASSWORD] or None}
    return await nats.connect(os.environ[URL], **login, pending_size=64 * 1024 * 1024)
