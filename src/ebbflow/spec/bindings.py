"""Bindings: which code, program or running function stands for an image, from a file of its own.

    quay.io/numaio/numaflow-go/map-cat:
      command: [bin/map-cat]
    orders/enrich:v2:
      python: orders:enrich
    payments:
      sockets: /run/payments

A name stands for an image if the last parts of the image's own name are the same, whatever registry
and folders come before them. Without a tag it stands for any. The longest name wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.cluster_values import ClusterValues
from ebbflow.connectors.schema.container import Program
from ebbflow.connectors.schema.fields import shown
from ebbflow.domain.code import Mode
from ebbflow.domain.errors import Problem
from ebbflow.spec.document import read
from ebbflow.spec.findings import Finding
from ebbflow.spec.validate import validate
from ebbflow.usercode import targets

BESIDE = "bindings.yaml"
"""The name of the file that is read if it lies beside a pipeline and no other is named."""

NO_MODE = "'mode' is for Python code; a function in its own process says its mode itself"


class Binding(Program):
    """What stands for an image: exactly one of ``command``, ``python`` and ``sockets``."""

    python: fields.Text | None = Field(
        default=None, description="the function or class, `module:attribute`"
    )
    mode: Mode | None = Field(default=None, description="what one call of it gets")


@dataclass(frozen=True, slots=True)
class Bindings:
    """The bindings of one file; relative paths in them begin in its ``folder``."""

    file: str = ""
    by_name: Mapping[str, Binding] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the file is."""
        return Path(self.file).parent

    def find(self, image: str) -> str | None:
        """Returns the name under which an image is bound; ``None`` if it is not."""
        fitting = [name for name in self.by_name if _stands_for(name, image)]
        return max(fitting, key=_precision, default=None)


def read_bindings(file: Path, values: ClusterValues | None) -> tuple[Bindings, list[Problem]]:
    """Returns the bindings of a file, with all that is wrong with it."""
    documents, problems = read(file)
    bindings: dict[str, Binding] = {}
    for document in documents:
        problems += document.problems
        for name, binding, findings in _each(document.data, values):
            problems += map(document.problem, findings)
            if binding is not None:
                bindings[name] = binding
    return Bindings(str(file), bindings), sorted(problems, key=lambda p: (p.line, p.column))


def find_file(spec: Path, named: Path | None) -> Path | None:
    """Returns the bindings file of a pipeline: the one that is named, else the one beside it."""
    beside = spec.parent / BESIDE
    return named or (beside if beside.is_file() else None)


def _each(
    data: Any, values: ClusterValues | None
) -> Iterator[tuple[str, Binding | None, list[Finding]]]:
    if not isinstance(data, dict):
        message = f"bindings are a mapping of images, not {shown(data)}"
        yield "", None, [Finding("EB103", message, ())]
        return
    for name, fields_of in data.items():
        if not isinstance(fields_of, dict):
            message = f"write command:, python: or sockets: for {name!r}, not {shown(fields_of)}"
            yield name, None, [Finding("EB103", message, (name,))]
            continue
        binding, wrong = validate(Binding, fields_of, values=values)
        findings = [Finding(f.code, f.message, (name, *f.path), f.at_key) for f in wrong]
        if binding is not None and not wrong:
            findings += _check(name, binding)
        yield name, binding, findings


def _check(name: str, binding: Binding) -> Iterator[Finding]:
    ways = [way for way in ("command", "python", "sockets") if getattr(binding, way)]
    if len(ways) != 1:
        said = f"not {' and '.join(ways)}" if ways else "it has none of them"
        message = f"{name!r} must have exactly one of command, python and sockets; {said}"
        yield Finding("EB207", message, (name,), at_key=True)
    elif binding.python is None and binding.mode is not None:
        yield Finding("EB104", NO_MODE, (name, "mode"))
    elif binding.python is not None and not targets.is_well_formed(binding.python):
        message = f"{binding.python!r} is not of the form module:attribute"
        yield Finding("EB401", message, (name, "python"))


# --- images -------------------------------------------------------------------------------------


def _stands_for(name: str, image: str) -> bool:
    path, tag = split_image(name)
    whole, its_tag = split_image(image)
    parts, own = path.split("/"), whole.split("/")
    return own[-len(parts) :] == parts and tag in ("", its_tag)


def _precision(name: str) -> tuple[int, bool]:
    path, tag = split_image(name)
    return path.count("/"), bool(tag)


def split_image(image: str) -> tuple[str, str]:
    """Returns the path of an image and its tag or digest, which may be empty."""
    path, _, digest = image.partition("@")
    at = path.rfind(":")
    if at > path.rfind("/"):  # else it is the port of a registry
        path, tag = path[:at], path[at + 1 :]
        return path, digest or tag
    return path, digest
