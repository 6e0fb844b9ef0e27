"""A Postgres of Debian's packages, in a folder of its own and on a free port.

It speaks TLS with a certificate of ``authority``. The login ``shop`` needs no password, all others
do. Postgres refuses to run as root. There its processes are those of the user ``postgres``, whom
the package makes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import trustme

from tests.ports import free_port

_NAMES = itertools.count()
_SETTINGS = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "ssl": "on",
    "ssl_cert_file": "server.crt",
    "ssl_key_file": "server.key",
    "unix_socket_directories": "",
}
_LOGINS = """
host all shop 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


class NoPostgres(Exception):
    """There is no server to test with."""


def find_programs() -> Path:
    """The folder with the server's programs."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin")]
    folders += [Path(path).parent for path in [shutil.which("initdb")] if path]
    found = [folder for folder in folders if (folder / "initdb").exists()]
    if not found:
        raise NoPostgres("initdb and postgres are missing; on Debian: apt-get install postgresql")
    return max(found)


class Postgres:
    """A server that is started, stopped and killed; ``url`` leads to its database."""

    def __init__(self) -> None:
        self._programs = find_programs()
        # Not in pytest's folders: the server has another user than root, and whichever pytest
        # starts next on this machine closes them to others.
        folder = Path(tempfile.mkdtemp(prefix="ebbflow-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._data = folder / "data"
        self.port = free_port()
        self.url = f"postgresql://shop@127.0.0.1:{self.port}/postgres"
        if os.geteuid() == 0:
            shutil.chown(folder, self._user)
        options = ("-U", "shop", "--auth=trust", "-E", "UTF8", "--no-sync")
        self._run("initdb", "-D", str(self._data), *options)
        self.authority = trustme.CA()
        certificate = self.authority.issue_cert("127.0.0.1")
        files = {
            "server.key": certificate.private_key_pem.bytes(),
            "server.crt": certificate.cert_chain_pems[0].bytes(),
            "pg_hba.conf": _LOGINS.encode(),
        }
        for name, content in files.items():
            path = self._data / name
            path.write_bytes(content)
            path.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(path, self._user)

    def start(self) -> Postgres:
        options = " ".join(f"-c {name}='{value}'" for name, value in _SETTINGS.items())
        log = self._data.parent / "log"
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-l", str(log),
            "-o", f"-p {self.port} {options}", "start",
        )  # fmt: skip
        return self

    def stop(self, mode: str = "fast") -> None:
        """End it; ``immediate`` is a crash, after which it recovers from its log."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", mode, "stop")

    def close(self) -> None:
        """End it for good."""
        with contextlib.suppress(NoPostgres):  # it may be stopped
            self.stop("immediate")
        shutil.rmtree(self._data.parent, ignore_errors=True)

    def restart(self) -> None:
        self.stop("immediate")
        self.start()

    def table(self, columns: str, stem: str = "orders") -> str:
        """Make a table with a name of its own; returns the name."""
        name = f"{stem}_{next(_NAMES)}"
        self.ask(f"CREATE TABLE {name} ({columns})")
        return name

    def ask(self, query: Any, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", self._user, "--", *command]
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise NoPostgres(f"{program} failed: {done.stdout.strip()[-500:]}")
