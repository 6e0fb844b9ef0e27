"""A run of a pipeline: its options, its lock, its attachments, and the spec that it stores.

**One run at a time.** On a NATS server a pipeline has one run, and a second one is refused. Two
runs would lose nothing, because positions fence off each other's tasks, but neither would make
progress. A run answers requests whether there is one. A run that was killed does not answer, and so
does not block the next run.

**The stored spec.** When a run begins, it stores its spec next to the positions, without secrets.
Commands and the web UI use it to draw the pipeline, to complete names of vertices and to know where
messages may be sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import nats.errors
from nats.aio.msg import Msg

from ebbflow.domain.durations import Duration, to_seconds
from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.domain.records import from_plain, to_plain
from ebbflow.domain.spelling import did_you_mean
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.spec.graph import PipelineShape, ShapeVertex
from ebbflow.streams.names import Names
from ebbflow.streams.positions import Record
from ebbflow.streams.provision import explain_missing

if TYPE_CHECKING:
    from ebbflow.nats.login import Login
    from ebbflow.spec.model import Spec

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
"""The lowest level at which the logs of user code are shown."""
_ANSWER_WITHIN = 2.0


class RunOptionNames(TypedDict, total=False):
    """The keywords of ``Pipeline.run`` and ``MonoVertex.run``; ``RunOptions`` explains them."""

    drain: bool
    timeout: Duration | None
    master: str | None
    state: str | Path
    nats: str | None
    login: Login | None
    nats_port: int
    durable: bool
    fresh: bool
    epoch: Duration
    conf: Mapping[str, str]
    spark_ui: bool
    search: str | Path | None
    log_level: LogLevel
    max_dead_letters: int | None


_SWITCH, _NUMBER = (bool, "True or False"), (int, "a whole number")
_TEXT, _PATH = (str, "text"), (str | os.PathLike, "a path")
_KINDS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("drain", "durable", "fresh", "spark_ui"), _SWITCH),
    **dict.fromkeys(("nats_port", "max_dead_letters"), _NUMBER),
    **dict.fromkeys(("master", "nats", "log_level"), _TEXT),
    **dict.fromkeys(("state", "search"), _PATH),
    "conf": (Mapping, "a mapping of Spark's settings"),
}
_OPTIONAL = frozenset({"master", "nats", "search", "max_dead_letters"})


def _check_kind(call: str, name: str, value: object) -> None:
    """Raises ``TypeError`` if an option cannot have such a value."""
    kind, words = _KINDS.get(name, (object, ""))
    fits = isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
    if not fits and not (value is None and name in _OPTIONAL):
        raise TypeError(f"{call}() takes {words} for {name}, not {value!r}")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run, checked. Each is a keyword of ``run``.

    ``drain`` ends the run when every message is processed. ``timeout`` ends it in any case, counted
    from when its vertices start. ``master`` is a Spark master, ``conf`` has Spark's settings, and
    ``spark_ui`` switches on Spark's web UI. ``state`` is the folder of the embedded NATS server,
    ``nats_port`` is its port, and ``durable`` makes it sync every write. ``nats`` and ``login`` are
    for your own server. ``fresh`` deletes the data of earlier runs. ``epoch`` is how long Spark
    tasks live. Here, this and ``timeout`` are in seconds. User code is looked up in ``search``
    first. Its logs are shown from ``log_level`` on. With more dead letters than
    ``max_dead_letters`` the run stops and fails.
    """

    drain: bool = False
    timeout: float | None = None
    master: str | None = None
    state: Path = Path(".ebbflow")
    nats: str | None = None
    login: Login | None = None
    nats_port: int = 0
    durable: bool = False
    fresh: bool = False
    epoch: float = 30.0
    conf: Mapping[str, str] = field(default_factory=dict)
    spark_ui: bool = False
    search: Path | None = None
    log_level: LogLevel = "info"
    max_dead_letters: int | None = None

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark's settings, as far as they are set; those of ``conf`` take precedence."""
        pages = {"spark.ui.enabled": "true"} if self.spark_ui else {}
        return {**pages, **self.conf}

    @classmethod
    def of(cls, names: RunOptionNames, call: str = "run") -> RunOptions:
        """Returns the options for the keywords of a call; ``TypeError`` for an unknown keyword."""
        known = [*cls.__dataclass_fields__, "quiet", "watcher", "ui", "metrics"]
        for name in sorted(names.keys() - set(known)):
            meant = did_you_mean(name, known, "it takes")
            raise TypeError(f"{call}() has no option {name!r}; {meant}")
        for name, value in names.items():
            _check_kind(call, name, value)
        timeout, search = names.get("timeout"), names.get("search")
        changed = {
            "timeout": None if timeout is None else to_seconds(timeout),
            "epoch": to_seconds(names.get("epoch", "30s")),
            "state": Path(names.get("state", ".ebbflow")),
            "search": None if search is None else Path(search),
        }
        return cls(**{**names, **changed})  # type: ignore[arg-type]


class Attachment(Protocol):
    """Opens something next to a run; the run's thread enters and leaves it.

    It gets the server and the name of the pipeline, and reads what it needs over its own
    connection: it cannot hold up the run. ``tell`` shows a line to people who watch the run. The
    context yields the addresses that people may open, by name, for the pipeline's status.
    """

    def __call__(
        self, server: Addresses, pipeline: str, tell: Callable[[str], None]
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Returns the context; a ``SetupError`` from it ends the run before it has begun."""


@contextmanager
def hold_run_lock(link: Link, names: Names) -> Iterator[None]:
    """Makes this the only run of the pipeline; ``SetupError`` if there is another."""
    other = link.run(find_run(link, names))
    if other is not None:
        raise SetupError(
            f"Pipeline {names.pipeline} is running already: {other}.",
            "Stop that run first, or give this pipeline another name.",
        )
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    this_run = f"process {os.getpid()} on {socket.gethostname()}, since {since}"

    async def answer(message: Msg) -> None:
        await message.respond(this_run.encode())

    subscription = link.run(link.client.subscribe(names.run_subject, cb=answer))
    try:
        link.flush()
        yield
    finally:
        with contextlib.suppress(Exception):
            link.run(subscription.unsubscribe(), timeout=5)


async def find_run(link: Link, names: Names) -> str | None:
    """Returns the description of the current run, if one answers."""
    try:
        answer = await link.client.request(names.run_subject, b"", _ANSWER_WITHIN)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None
    return answer.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """A spec as data, secrets hidden, and the shape of its pipeline."""

    document: dict[str, Any]
    shape: PipelineShape

    def vertex(self, name: str) -> ShapeVertex:
        """Returns the vertex of that name; an ``EbbflowError`` lists the vertices there are."""
        vertex = self.shape.vertex(name)
        if vertex is None:
            names = [each.name for each in self.shape.vertices]
            meant = did_you_mean(name, names, "there are")
            raise EbbflowError(f"{self.shape.pipeline} has no vertex {name!r}; {meant}")
        return vertex


async def store_spec(client: SecuredClient, names: Names, spec: Spec) -> None:
    """Stores the spec of a run, in place of the previous one."""
    from ebbflow.spec.echo import outline, to_document

    stored = {"document": to_document(spec), "shape": to_plain(outline(spec))}
    payload = json.dumps(stored).encode()
    await Record(client, names.positions, names.spec_key).update(lambda _: payload)


async def read_spec(client: SecuredClient, names: Names) -> StoredSpec:
    """Returns the spec of the latest run; ``SetupError`` if no such pipeline has run here."""
    async with explain_missing(client, names.pipeline):
        stored = await Record(client, names.positions, names.spec_key).read()
    if stored is None:
        raise SetupError(
            f"Pipeline {names.pipeline} has not run with this version yet.",
            "Run it once, or name its file.",
        )
    facts = json.loads(stored)
    return StoredSpec(facts["document"], from_plain(PipelineShape, facts["shape"]))
