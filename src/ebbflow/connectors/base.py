"""The parts of every connector: a section of a spec, its plan, and its place in the tables.

A connector is a class of fields, ``SourceSection`` or ``SinkSection``, decorated with
``@source("name")`` or ``@sink("name")``. Lint reads the fields. The driver asks a section for its
plan once, when a run begins. Then ``freeze`` reads secrets and ``require_extra`` checks for
optional packages, so the user who starts a pipeline sees mistakes at once. A section imports its
client only then: lint needs no clients. Workers get plans. If the section has its own module, they
need neither that module nor pydantic.

Lint, planner, provisioning, permissions, builders and reference pages read the tables ``SOURCES``
and ``SINKS`` and name no kind themselves. ``registry`` fills them, also with connectors of other
packages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ebbflow.connectors.plans import Pulled, Settings, UserSink
from ebbflow.connectors.schema.fields import Section, takes_duration
from ebbflow.connectors.schema.secrets import SecretRef
from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from ebbflow.connectors.generator import GeneratorPlan
    from ebbflow.connectors.plans import SinkPlan
    from ebbflow.streams.feed import FeedPlan

__all__ = [
    "SINKS",
    "SOURCES",
    "ConnectorSection",
    "Pulled",
    "Settings",
    "SinkKind",
    "SinkSection",
    "SourceKind",
    "SourceSection",
    "UserSink",
    "require_extra",
    "sink",
    "source",
]

T = TypeVar("T")


# --- sections -----------------------------------------------------------------------------------


class ConnectorSection(Section):
    """The fields of a connector, which are converted to plain settings for workers."""

    @overload
    def freeze(self, owner: str, /, **computed: Any) -> Settings: ...

    @overload
    def freeze(self, owner: str, into: type[T], /, **computed: Any) -> T: ...

    def freeze(self, owner: str, into: Any = Settings, /, **computed: Any) -> Any:
        """Returns the fields as plain data that workers read without pydantic.

        Secrets are read. Durations become seconds, lists tuples, mappings tuples of pairs, and
        sections ``Settings``. ``owner`` names the connector in errors about secrets, as in "the
        sqlite sink". ``computed`` values replace or supplement those of fields. ``into`` is a
        dataclass that gets the fields it declares.
        """
        names = type(self).model_fields.keys() - computed.keys()
        if into is not Settings:
            names &= {field.name for field in fields(into)}
        return into(**_freeze_fields(self, owner, names), **computed)


class SourceSection(ConnectorSection):
    """The fields of one kind of source."""

    def plan(self, pipeline: str, vertex: str) -> GeneratorPlan | Pulled | FeedPlan:
        """Returns the plan of the source. The driver calls it; ``SetupError`` ends the run."""
        raise NotImplementedError


class SinkSection(ConnectorSection):
    """The fields of one kind of sink."""

    @property
    def alone(self) -> str | None:
        """The field, if any, that requires one partition and no other sink of the vertex."""
        return None

    def plan(self) -> SinkPlan:
        """Returns the plan of the sink. The driver calls it; ``SetupError`` ends the run."""
        raise NotImplementedError


def _freeze_fields(section: Section, owner: str, names: Collection[str]) -> dict[str, Any]:
    return {
        name: _freeze(getattr(section, name), f"the {field.alias or name} of {owner}", field)
        for name, field in type(section).model_fields.items()
        if name in names
    }


def _freeze(value: Any, what: str, field: Any = None) -> Any:
    if isinstance(value, SecretRef):
        return value.read(what)
    if isinstance(value, Section):
        return Settings(**_freeze_fields(value, what, type(value).model_fields))
    if isinstance(value, Mapping):
        return tuple((key, _freeze(item, what)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, what) for item in value)
    return value / 1000 if isinstance(value, int) and field and takes_duration(field) else value


# --- kinds --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: its section, and how its messages reach the vertex.

    ``feeds``: a feed on the driver stores them in the vertex's own buffer first. ``returns``:
    nacked messages may be returned to the outside system, which a ledger then records.
    ``remembers``: the ids that senders give are written down, to recognise copies. ``serves``: each
    message is a request whose caller waits for answers, so all vertices of the pipeline record the
    outcome of every message. With none of these the vertex's task creates the messages itself.
    """

    section: type[SourceSection]
    feeds: bool = False
    returns: bool = False
    remembers: bool = False
    serves: bool = False


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink: its section. ``batched``: Spark writes whole batches of its messages.

    ``answers``: it can answer a request.
    """

    section: type[SinkSection]
    batched: bool = False
    answers: bool = False


SOURCES: dict[str, SourceKind] = {}
"""Every kind of source by its name in a spec."""

SINKS: dict[str, SinkKind] = {}
"""Every kind of sink by its name in a spec."""

Source = TypeVar("Source", bound=SourceSection)
Sink = TypeVar("Sink", bound=SinkSection)
Kind = TypeVar("Kind", SourceKind, SinkKind)


def source(
    name: str,
    *,
    feeds: bool = False,
    returns: bool = False,
    remembers: bool = False,
    serves: bool = False,
) -> Callable[[type[Source]], type[Source]]:
    """Registers the decorated section as a kind of source; see ``SourceKind`` for the options."""

    def register(section: type[Source]) -> type[Source]:
        _register(SOURCES, "source", name, SourceKind(section, feeds, returns, remembers, serves))
        return section

    return register


def sink(
    name: str, *, batched: bool = False, answers: bool = False
) -> Callable[[type[Sink]], type[Sink]]:
    """Registers the decorated section as a kind of sink; see ``SinkKind`` for the options."""

    def register(section: type[Sink]) -> type[Sink]:
        _register(SINKS, "sink", name, SinkKind(section, batched, answers))
        return section

    return register


def _register(table: dict[str, Kind], role: str, name: str, kind: Kind) -> None:
    """Adds a kind; ``SetupError`` names both packages if another connector has the same name."""
    there = table.get(name)
    if there is not None and _place_of(there.section) != _place_of(kind.section):
        one, other = (_place_of(each.section) for each in (there, kind))
        raise SetupError(
            f"Two {role}s are called {name}: {one} and {other}.", "Give one of them another name."
        )
    table[name] = kind


def _place_of(section: type[Section]) -> str:
    package = section.__module__.partition(".")[0]
    return f"{section.__module__}.{section.__qualname__} of the package {package}"


# --- optional packages --------------------------------------------------------------------------


def require_extra(who: str, extra: str, *packages: str) -> None:
    """Raises ``SetupError`` that names the extra to install if one of its packages is missing."""
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError:
            raise SetupError(
                f"{who} needs a package that is not installed.",
                f"Run: pip install 'ebbflow[{extra}]'",
            ) from None
