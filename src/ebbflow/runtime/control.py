"""Control of running tasks: the commands sent to them, and one way to receive these.

The driver, or a person with ``ebbflow pause``, ``resume`` or ``tap``, publishes commands on the
control subject of a pipeline, as JSON with a name and arguments. Commands are not stored: the
sender repeats a command until it sees the effect. A task ignores a command that it does not know.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nats.aio.msg import Msg

from ebbflow.accounts.taps import TapRequest
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from ebbflow.streams.positions import Pauses, read_pauses


def _command(name: str, **arguments: Any) -> bytes:
    return json.dumps({"word": name} | arguments).encode()


STOP = _command("stop")
"""Makes tasks settle what they have taken and end; no other epoch follows."""


def shorter_epochs_command(seconds: float, vertex: str | None = None) -> bytes:
    """Returns the command that shortens the epochs of all tasks, or of the tasks of a vertex.

    Sent when other vertices wait for slots, or when vertices are to share tasks differently.
    """
    return _command("shorten", seconds=seconds, vertex=vertex)


def resume_command(vertex: str | None) -> bytes:
    """Returns the command that lets a vertex, or all, continue after too many dead letters."""
    return _command("resume", vertex=vertex)


def pauses_command(pauses: Pauses) -> bytes:
    """Returns the command that tells tasks what is paused: the whole record and its revision."""
    return _command("pauses", revision=pauses.revision, record=json.dumps(pauses.to_json()))


def tap_command(request: TapRequest) -> bytes:
    """Returns the command that makes tasks of the vertex show the messages that pass."""
    return _command("tap", request=request.to_json())


def end_tap(token: str) -> bytes:
    """Returns the command that ends a tap before its time is over."""
    return _command("untap", token=token)


Handlers = Mapping[str, Callable[..., None]]
"""The handler of each command, called with its arguments by name on the thread of the link."""


def obey(command: bytes, handlers: Handlers) -> None:
    """Carries out a command, if there is a handler for it."""
    try:
        arguments = json.loads(command)
    except ValueError:  # from another version of Ebbflow
        return
    handler = handlers.get(arguments.pop("word"))
    if handler is not None:
        handler(**arguments)


@contextlib.contextmanager
def listening(link: Link, names: Names, handlers: Handlers) -> Iterator[None]:
    """Carries out the commands of a pipeline while the context is open."""

    async def receive(message: Msg) -> None:
        obey(message.data, handlers)

    subscription = link.run(link.client.subscribe(names.control_subject, cb=receive))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # else it would replace a real error
            link.run(subscription.unsubscribe(), timeout=5)


class PauseWatch:
    """Whether one vertex is paused: from the record when a task begins, then from commands.

    Commands arrive within milliseconds. If one is lost, the next command makes up for it, or the
    record when the next epoch begins. ``tell`` is called whenever the answer may have changed.
    """

    def __init__(self, names: Names, vertex: str, tell: Callable[[bool], None]) -> None:
        self._names = names
        self._vertex = vertex
        self._tell = tell
        self._known = Pauses()

    def read(self, link: Link) -> None:
        """Reads the record. Call it after ``listening`` has begun, so that no command is missed."""
        self._note(link.run(read_pauses(link.client, self._names)))

    def receive(self, revision: int, record: str) -> None:
        """Takes the record that a command carries."""
        self._note(Pauses.from_json(record, revision))

    def _note(self, pauses: Pauses) -> None:
        if pauses.revision >= self._known.revision:
            self._known = pauses
            self._tell(pauses.since(self._vertex) is not None)
