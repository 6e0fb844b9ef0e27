"""Rules about functions: that there is code for each section, and something for each container."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

from ebbflow.connectors.user_code.spec import Bound, CodeSection, UserSinkSpec
from ebbflow.domain.code import Code, SinkMode
from ebbflow.domain.errors import TargetError
from ebbflow.numaflow.pynumaflow.recognition import Place
from ebbflow.spec.bindings import BESIDE, NO_MODE
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.rules.calls import find_faults
from ebbflow.usercode import targets


def check_code(
    code: CodeSection, path: FieldPath, vertex: str, search: Path | None
) -> Iterator[Finding]:
    """Reports a section that nothing runs for, or whose Python code cannot be used."""
    if code.python is not None:
        yield from check_target(code.python, (*path, "python"), search, code.PLACE, code.call_mode)
    elif code.python is None and code.container is None:
        message = f"'{path[-1]}' has no code: name a Python function with python: module:attribute"
        yield Finding("EB208", message, path)
    elif code.python is None and code.bound is None:
        yield Finding("EB902", _unbound(code, vertex), (*path, "container"), at_key=True)
    elif code.python is None and code.bound is not None:
        yield from _bound_code(code, code.bound, (*path, "container"), search)
        if code.bound.function is not None and _says_mode(code):
            yield Finding("EB104", NO_MODE, (*path, "mode"))


def check_target(
    target: Code, path: FieldPath, search: Path | None, place: Place, mode: str = "unary"
) -> Iterator[Finding]:
    """Reports code that cannot be imported, made, or called with what its place gives."""
    code: Any = target
    if isinstance(target, str):
        if not targets.is_well_formed(target):
            yield Finding("EB401", f"{target!r} is not of the form module:attribute", path)
            return
        try:
            code = targets.resolve(target, search)
        except TargetError as error:
            yield Finding("EB402", str(error), path)
            return
    for fault in find_faults(code, place, mode):
        yield Finding(fault.code, str(TargetError(_name_of(target), fault.what)), path)


def _name_of(target: Code) -> str:
    """Returns the target, or what it would be if it were written in a file."""
    if isinstance(target, str):
        return target
    code = target.func if isinstance(target, partial) else target
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}:{named.__qualname__}"


def _unbound(code: CodeSection, vertex: str) -> str:
    assert code.container is not None
    image = code.container.image
    if image is None:
        return f"the container of {vertex!r} has no image and no command: write one of them"
    return (
        f"there is no function for image {image!r} of {vertex!r}; write in {BESIDE} beside this "
        f"file (or --bind FILE): {image}: {{command: [PROGRAM]}}, or {{python: module:attribute}}, "
        "or {sockets: FOLDER}"
    )


def _says_mode(code: CodeSection) -> bool:
    field = type(code).model_fields.get("mode")
    return field is not None and getattr(code, "mode", None) != field.default


def _bound_code(
    code: CodeSection, bound: Bound, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    if bound.code is not None:
        yield from check_target(bound.code, path, search, code.PLACE, code.call_mode)
    if isinstance(code, UserSinkSpec) and bound.mode not in (None, *get_args(SinkMode)):
        modes = ", ".join(get_args(SinkMode))
        message = f"the image is bound with mode {bound.mode!r}, and a sink has one of {modes}"
        yield Finding("EB104", message, path)
