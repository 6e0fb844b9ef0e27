"""All connectors: those of this package, and those that other packages ship.

A package ships connectors with entry points of the group ``ebbflow.connectors``. The name of an
entry point is the connector's name in a spec. Its value is the module with the connector's
``@source`` or ``@sink``.

The names are known without importing anything. A module is imported when a spec uses its connector,
when ``ebbflow doctor`` checks all of them, and when they are listed: by ``ebbflow connectors``, in
the JSON schema and the reference, and in the error about an unknown name. If a package cannot be
imported, specs that use it get an error that names it, and no other spec is affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ebbflow.connectors.base import SINKS, SOURCES, SinkKind, SourceKind
from ebbflow.connectors.schema.fields import Section
from ebbflow.domain import __version__
from ebbflow.domain.errors import SetupError

_BUILT_IN = tuple(
    f"ebbflow.connectors.{module}"
    for module in (
        "builtin",
        "user_code",
        "http.spec",
        "nats.spec",
        "kafka.spec",
        "postgres.spec",
        "pulsar.spec",
        "sqs.spec",
        "pubsub.spec",
        "spark.spec",
        "serving.spec",
    )
)
"""The modules with the connectors of this package, in display order."""


def _sort(table: dict[str, Any]) -> None:
    """Sorts the kinds into that order, whichever module was imported first."""
    modules = {name: kind.section.__module__ for name, kind in table.items()}
    order = {module: number for number, module in enumerate(_BUILT_IN)}
    for name in sorted(table, key=lambda name: order.get(modules[name], len(order))):
        table[name] = table.pop(name)


for _module in _BUILT_IN:
    import_module(_module)
for _table in (SOURCES, SINKS):
    _sort(_table)

GROUP = "ebbflow.connectors"
"""The group of the entry points."""

Role = Literal["source", "sink"]

_NAME = re.compile(r"[a-z][A-Za-z0-9]*")
_TAKEN = frozenset(
    {"transformer", "fallback", "onSuccess", "retryStrategy", "kind", "kinds", "section", "batched"}
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """The connector of this name that a package ships; with several packages it is unusable."""

    name: str
    points: tuple[EntryPoint, ...]

    @property
    def packages(self) -> str:
        """The names of the packages that ship it."""
        return " and ".join(point.dist.name if point.dist else point.value for point in self.points)

    @property
    def version(self) -> str:
        """The version of the package."""
        dist = self.points[0].dist
        return dist.version if dist else ""

    def load(self) -> None:
        """Imports it, which registers it; ``SetupError`` names the package if that fails."""
        if len(self.points) > 1:
            raise SetupError(
                f"Several packages ship a connector called {self.name}: {self.packages}.",
                "Uninstall all but one of them.",
            )
        try:
            self.points[0].load()
        except (Exception, SystemExit) as error:
            why = str(error).rstrip(".") or "it ends"
            raise SetupError(
                f"The connector {self.name} of the package {self.packages} cannot be loaded: "
                f"{type(error).__name__}: {why}.",
                f"{self._say_what_to_install(error)}or update or uninstall that package.",
            ) from error
        if self.name not in SOURCES and self.name not in SINKS:
            raise SetupError(
                f"The package {self.packages} ships no connector called {self.name}, though its "
                "entry point says so.",
                f'Its module needs @source("{self.name}") or @sink("{self.name}").',
            )

    def _say_what_to_install(self, error: BaseException) -> str:
        """Returns the beginning of a sentence; the entry point's extras say what is missing."""
        if not isinstance(error, ModuleNotFoundError) or not error.name:
            return "Correct, "
        extras = ",".join(self.points[0].extras)
        missing = f"{self.packages}[{extras}]" if extras else error.name.partition(".")[0]
        return f"Install what it needs, as with: pip install '{missing}'; "

    def kind(self, role: Role) -> SourceKind | SinkKind:
        """Returns it as a source or as a sink; ``SetupError`` if it cannot be used as one."""
        self.load()
        table: Mapping[str, SourceKind | SinkKind] = SOURCES if role == "source" else SINKS
        if self.name not in table:
            other = "sink" if role == "source" else "source"
            raise SetupError(
                f"The connector {self.name} of the package {self.packages} is not a {role}.",
                f"Use it as a {other}.",
            )
        return table[self.name]


@cache
def find_shipped() -> dict[str, Shipped]:
    """Returns the connectors of other packages by name, without importing them."""
    return {
        name: Shipped(name, points) for name, points in _entry_points().items() if _is_usable(name)
    }


def _entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    found = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return {
        name: tuple(point for point in found if point.name == name)
        for name in dict.fromkeys(point.name for point in found)
    }


def _is_usable(name: str) -> bool:
    free = name not in _TAKEN and not hasattr(Section, name)
    return free and _NAME.fullmatch(name) is not None


def find_problems() -> Iterator[SetupError]:
    """Yields the problems of other packages' connectors; imports all of them."""
    for name, points in _entry_points().items():
        shipped = Shipped(name, points)
        if not _is_usable(name):
            yield SetupError(
                f"The package {shipped.packages} ships a connector called {name}, which is not a "
                "valid name.",
                "A name has letters and digits, begins with a lower-case letter, and is not taken.",
            )
            continue
        try:
            shipped.load()
        except SetupError as error:
            yield error


@dataclass(frozen=True, slots=True)
class Listed:
    """A connector in one role, its package, and the ``fields`` of its section.

    ``problem`` says why it cannot be used. Then its role is unknown.
    """

    name: str
    role: Role | None
    package: str
    version: str
    fields: Mapping[str, FieldInfo]
    problem: SetupError | None = None


def list_connectors() -> Iterator[Listed]:
    """Yields all connectors, those of this package first; imports all of them."""
    shipped = find_shipped()
    problems = {}
    for name, each in shipped.items():
        try:
            each.load()
        except SetupError as error:
            problems[name] = error
    tables: dict[Role, Mapping[str, SourceKind | SinkKind]] = {"source": SOURCES, "sink": SINKS}
    for name in dict.fromkeys([*SOURCES, *SINKS]):
        for role, table in tables.items():
            if name in table:
                fields = table[name].section.model_fields
                own = table[name].section.__module__.startswith("ebbflow.connectors.")
                origin = ("ebbflow", __version__) if own else _origin(shipped.get(name))
                yield Listed(name, role, *origin, fields)
    for name, problem in problems.items():
        yield Listed(name, None, *_origin(shipped[name]), {}, problem)


def _origin(shipped: Shipped | None) -> tuple[str, str]:
    return (shipped.packages, shipped.version) if shipped else ("", "")


# --- in a spec ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShippedSection:
    """Marks a field for the section of a shipped connector, imported when the field is read."""

    shipped: Shipped
    role: Role

    @property
    def section(self) -> type[Section] | None:
        """The section; ``None`` if the connector cannot be used here."""
        try:
            return self.shipped.kind(self.role).section
        except SetupError:
            return None

    def _read(self, value: Any, info: ValidationInfo) -> Section:
        try:
            section = self.shipped.kind(self.role).section
        except SetupError as error:
            what, step = error.what.rstrip("."), error.next_step
            raise PydanticCustomError("EB212", "{why}", {"why": f"{what}. {step}"}) from None
        # Builders, which pass no context, may also use Python's names.
        return section.model_validate(
            value, by_alias=True, by_name=info.context is None, context=info.context
        )

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        section = self.section
        if section is None:
            return {"type": "null"}
        return {"anyOf": [handler(section.__pydantic_core_schema__), {"type": "null"}]}


def shipped_fields(role: Role) -> dict[str, tuple[Any, None]]:
    """Returns a field for each shipped connector that may have the role."""
    there: Mapping[str, Any] = SOURCES if role == "source" else SINKS
    return {
        name: (Annotated[Any, ShippedSection(shipped, role)], None)
        for name, shipped in find_shipped().items()
        if name not in there
    }


def section_in(field: FieldInfo) -> ShippedSection | None:
    """Returns the shipped connector of a field, if it is for one."""
    return next((each for each in field.metadata if isinstance(each, ShippedSection)), None)


def unusable(role: Role) -> frozenset[str]:
    """Returns the shipped connectors that cannot have the role."""
    kinds = {name: ShippedSection(shipped, role) for name, shipped in find_shipped().items()}
    return frozenset(name for name, kind in kinds.items() if kind.section is None)
