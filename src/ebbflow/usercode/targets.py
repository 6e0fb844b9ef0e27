"""``module:attribute`` → the user's function or class.

Modules next to the pipeline's file are found first, then those on the Python path. Used by lint
and on Spark's workers, so nothing heavy is imported here. Whatever the user's module does while
it is imported, the result is its attribute or a ``TargetError``. Processes outlive runs, so a new
run calls ``forget_changed_modules`` first, to get the code that is on disk.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ebbflow.domain.errors import TargetError
from ebbflow.domain.spelling import did_you_mean

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TARGET = re.compile(f"({_DOTTED}):({_DOTTED})")

_found_in: dict[str, Path] = {}
"""Top-level module → the folder next to a pipeline that it was imported from."""

_versions: dict[str, tuple[Path, str, int]] = {}
"""Module → the folder next to a pipeline that it is from, its file, and the file's change time."""


def is_well_formed(target: str) -> bool:
    """Returns whether the target reads ``module:attribute``; either may have dots."""
    return _TARGET.fullmatch(target) is not None


def is_code(value: Any) -> bool:
    """Returns whether the value can be user code: a function, a class, or pynumaflow's object.

    Servers and sources of pynumaflow are not callable; their handlers are.
    """
    made_by = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return callable(value) or "pynumaflow" in made_by


def is_class(code: Any) -> bool:
    """Returns whether the code is a class, or a class with arguments, rather than a function."""
    return inspect.isclass(code.func if isinstance(code, partial) else code)


def resolve(target: str, search: Path | None = None) -> Callable[..., Any]:
    """Imports the target and returns it; ``search`` is the folder to look in first."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise TargetError(target, "it is not of the form module:attribute")
    name, attribute = match.groups()
    if search is not None:
        _look_in(search.resolve(), name.partition(".")[0], target)
    module = _import(name, target)
    if search is not None:
        _note_versions(search.resolve())
    return _attribute(module, attribute, target)


def forget_changed_modules() -> None:
    """Makes modules whose files have changed, and all others of their folders, import again."""
    stale = {folder for folder, file, changed in _versions.values() if _changed(file) != changed}
    for name in [name for name, (folder, _, _) in _versions.items() if folder in stale]:
        del _versions[name]
        sys.modules.pop(name, None)


def _note_versions(folder: Path) -> None:
    """Notes the change times of a folder's modules at their import."""
    inside = f"{folder}{os.sep}"
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None) or ""
        if name not in _versions and file.startswith(inside):
            _versions[name] = folder, file, _changed(file)


def _changed(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _look_in(folder: Path, top: str, target: str) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()
    if not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return
    if top in sys.modules and not _is_from(sys.modules[top], folder, top):
        _forget_module(top, target)
    _found_in[top] = folder


def _is_from(module: ModuleType, folder: Path, top: str) -> bool:
    # Packages without __init__.py have no file, modules built into Python have neither.
    file = getattr(module, "__file__", None)
    paths = [file] if file else list(getattr(module, "__path__", ()))
    resolved = {Path(path).resolve() for path in paths}
    return bool(resolved & {folder / f"{top}.py", folder / top, folder / top / "__init__.py"})


def _forget_module(top: str, target: str) -> None:
    """Forgets a module of the same name that belongs to another pipeline."""
    if top not in _found_in:
        raise TargetError(
            target, f"another module named {top!r} is already in use; give yours a different name"
        )
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        del sys.modules[name]


def _import(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            reason = f"there is no module {error.name!r} next to the pipeline or on the Python path"
            raise TargetError(target, reason) from None
        raise TargetError(target, _explain_import_failure(name, error)) from error
    except KeyboardInterrupt as interrupt:  # pressed by a person, or raised by the module
        interrupt.add_note(f"while {name!r} was imported{_place(interrupt)}")
        raise
    # Any other exception, too: a module that calls sys.exit() must not end its importer.
    except BaseException as error:
        raise TargetError(target, _explain_import_failure(name, error)) from error


def _explain_import_failure(name: str, error: BaseException) -> str:
    text = f"importing {name!r} failed: {type(error).__name__}: {error}"
    # The text of a syntax error already ends with file and line.
    return text if isinstance(error, SyntaxError) else text + _place(error)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    # The first frame is this module's call of import_module.
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if len(own) > 1 else ""


def _attribute(module: ModuleType, attribute: str, target: str) -> Callable[..., Any]:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise TargetError(target, _missing(value, part))
        value = getattr(value, part)
    if not is_code(value):
        kind = type(value).__name__
        raise TargetError(target, f"{attribute!r} is of type {kind}, not a function or class")
    return value  # type: ignore[no-any-return]


def _missing(holder: Any, part: str) -> str:
    public = [name for name in dir(holder) if not name.startswith("_")]
    usable = [name for name in public if callable(getattr(holder, name, None))]
    owner = getattr(holder, "__name__", type(holder).__name__)
    return f"{owner!r} has no {part!r}; {did_you_mean(part, usable, 'it has')}"
