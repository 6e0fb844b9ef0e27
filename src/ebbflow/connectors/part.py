"""Parts of a pipeline, written as keyword arguments in Python: connectors, logins, limits.

A part is checked when it is created, by the model that reads the same part of a YAML file: with the
same errors, and with "did you mean" for an unknown name. ``typed`` has the classes of this package;
``scripts/typed_parts.py`` generates them from the models, so that editors and type checkers know
every option. Classes for connectors of other packages are created at their first use. Importing
this module needs neither pydantic nor a model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

from ebbflow.domain.errors import Problem, SpecError
from ebbflow.domain.spelling import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

Role = Literal["source", "sink"]


class Part:
    """A part of a pipeline, created with keyword arguments and checked when it is created.

    Raises ``TypeError`` for an option that does not exist, and ``SpecError`` for a value that
    ``ebbflow lint`` would refuse. An option that is ``None`` counts as left out.
    """

    MODELS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **settings: Any) -> None:
        written = {name: value for name, value in settings.items() if value is not None}
        self._settings = {name: plain_value(value) for name, value in written.items()}
        self._check(self._models())

    @classmethod
    def _models(cls) -> list[Any]:
        """Returns the models that may read the settings; one of them must accept them."""
        return [_load(name) for name in cls.MODELS]

    def _check(self, models: list[Any]) -> None:
        known = {name for model in models for name in model.model_fields}
        for name in self._settings:
            if _field_name(name) not in known:
                meant = did_you_mean(name, sorted(known), "it takes")
                raise TypeError(f"{type(self).__name__}() has no option {name!r}; {meant}")
        names = {_field_name(name) for name in self._settings}
        fitting = [model for model in models if names <= model.model_fields.keys()]
        found = [self._problems(model) for model in fitting or models]
        if found and all(found):
            raise SpecError(min(found, key=len))

    def _problems(self, model: Any) -> list[Problem]:
        # Imported by name, because this package must not depend on the package of specs above it.
        validate = import_module("ebbflow.spec.validate").validate
        _, findings = validate(model, self.to_plain(), python_names=True)
        place = f"{type(self).__name__}()"
        return [Problem("", 0, 0, each.code, each.message, place) for each in findings]

    def to_plain(self) -> dict[str, Any]:
        """Returns the settings as in YAML, but with Python's names."""
        return {_field_name(name): value for name, value in self._settings.items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash((type(self), *self._settings))

    def __repr__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({', '.join(settings)})"


class Connector(Part):
    """A system to read from or write to, for ``Pipeline.source`` and ``sink``."""

    KIND: ClassVar[str]
    SOURCE: ClassVar[str | None] = None
    SINK: ClassVar[str | None] = None

    @classmethod
    def _models(cls) -> list[Any]:
        return [_load(name) for name in (cls.SOURCE, cls.SINK) if name is not None]

    def section(self, role: Role) -> dict[str, Any]:
        """Returns the section of a source or a sink; ``TypeError`` if it cannot be used as one."""
        model = self.SOURCE if role == "source" else self.SINK
        if model is None:
            other = "sink" if role == "source" else "source"
            raise TypeError(f"{type(self).__name__} is a {other}, and cannot be used as a {role}")
        if problems := self._problems(_load(model)):
            raise SpecError(problems)
        return {self.KIND: self.to_plain()}


def plain_value(value: Any) -> Any:
    """Returns a setting as plain data; parts inside become mappings."""
    if isinstance(value, Part):
        return value.to_plain()
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def make_connector(name: str) -> type[Connector]:
    """Creates the class of a connector that another package ships, from its sections."""
    from ebbflow.connectors.base import SINKS, SOURCES
    from ebbflow.connectors.registry import find_shipped

    find_shipped()[name].load()
    tables: dict[str, Mapping[str, Any]] = {"SOURCE": SOURCES, "SINK": SINKS}
    sections = {role: table[name].section for role, table in tables.items() if name in table}
    paths = {role: f"{each.__module__}:{each.__qualname__}" for role, each in sections.items()}
    doc = next(iter(sections.values())).__doc__
    return type(class_name(name), (Connector,), {"KIND": name, "__doc__": doc, **paths})


def class_name(kind: str) -> str:
    """Returns the name of the class for a kind of source or sink."""
    return "JetStream" if kind == "jetstream" else kind[:1].upper() + kind[1:]


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return functools.reduce(getattr, attribute.split("."), import_module(module))


def _field_name(name: str) -> str:
    return "schema_" if name == "schema" else name
