"""Prints size figures: files, lines, functions and classes by package, and the totals.

``python scripts/house.py`` measures the working tree. It also prints the imports that break the
layers of ``tests/test_layers.py``, and repeated names. With git revisions as arguments, it prints
their totals as well.
"""

from __future__ import annotations

import ast
import io
import runpy
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/ebbflow")
SLIVER = 60

ON_PURPOSE = {
    "sink.py": "of each connector",
    "source.py": "of each connector",
    "spec.py": "of each connector",
    "lint": "the command, and the function that it calls",
    "main": "the entry point of each program",
    "nothing_is_left_behind": "one rule in the suite for sources and in that for sinks",
}
"""Names of modules, classes and functions that may be repeated, with the reason."""


@dataclass
class Figures:
    """The figures of some modules."""

    files: list[int] = field(default_factory=list)
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    functions: list[int] = field(default_factory=list)
    classes: int = 0
    slivers: int = 0

    def add(self, path: Path) -> None:
        """Adds one module."""
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        self.files.append(len(lines))
        self.slivers += len(lines) < SLIVER and path.name != "__init__.py"
        tree = ast.parse(text)
        docstrings = sum(map(_docstring_lines, ast.walk(tree)))
        comments = _comment_lines(text)
        blank = sum(not line.strip() for line in lines)
        self.docstrings += docstrings
        self.comments += comments
        self.code += len(lines) - docstrings - comments - blank
        self.classes += sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        self.functions += [
            node.end_lineno - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        ]

    def row(self, name: str) -> tuple[str, ...]:
        """Returns the cells of a table."""
        lengths = sorted(self.functions) or [0]
        p90 = quantiles(lengths, n=10)[-1] if len(lengths) > 1 else lengths[0]
        functions = f"{len(self.functions):,} ({median(lengths):.0f} / {p90:.0f} / {lengths[-1]})"
        numbers = (len(self.files), sum(self.files), self.code, self.docstrings, self.comments)
        tail = (f"{median(self.files):.0f}", str(self.slivers), functions, str(self.classes))
        return (name, *(f"{number:,}" for number in numbers), *tail)


NOT_BY_HAND = ("__init__.py", "_pb2.py", "_pb2_grpc.py", "typed.py")
"""Endings of modules that are empty or generated; ``typed`` mirrors the models."""

HEAD = (
    "package", "files", "lines", "code", "docstrings", "comments", "median file",
    f"under {SLIVER}", "functions (median / p90 / max)", "classes",
)  # fmt: skip


def _docstring_lines(node: ast.AST) -> int:
    """Returns the number of non-blank lines of a docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, kinds) or ast.get_docstring(node) is None:
        return 0
    return sum(bool(line.strip()) for line in (ast.get_docstring(node) or "").splitlines())


def _comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
               for token in tokens)  # fmt: skip


def measure(root: Path) -> dict[str, Figures]:
    """Returns the figures of each package, and of all packages as ``total``."""
    found: defaultdict[str, Figures] = defaultdict(Figures)
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).parts
        found[parts[0] if len(parts) > 1 else "(root)"].add(path)
        found["total"].add(path)
    return {name: found[name] for name in sorted(found, key=lambda name: (name == "total", name))}


def top_entries(root: Path) -> list[str]:
    """Returns the packages and modules at the top level."""
    entries = (root / PACKAGE).iterdir()
    return sorted(e.name for e in entries if e.suffix == ".py" or (e / "__init__.py").exists())


def modules(root: Path) -> list[Path]:
    """Returns every handwritten module except ``__init__``."""
    every = sorted((root / PACKAGE).rglob("*.py"))
    return [path for path in every if not path.name.endswith(NOT_BY_HAND)]


def repeated_modules(root: Path) -> dict[str, list[str]]:
    """Returns module names that are used at least three times, and where."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules(root):
        found[path.name].append(str(path.parent.relative_to(root / PACKAGE)))
    return {name: where for name, where in sorted(found.items()) if len(where) > 2}


def repeated_names(root: Path) -> dict[str, list[str]]:
    """Returns public classes and functions that several modules define, and where."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules(root):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, kinds) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(root / PACKAGE)))
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def upward_imports(layers: dict[str, Any]) -> list[str]:
    """Returns the imports of modules in higher layers, except those that are allowed."""
    order, layer_of = list(layers["LAYERS"]), layers["layer_of"]
    return [
        f"{module} imports {target}"
        for module in layers["MODULES"]
        for target in sorted(layers["imports_of"](module))
        if order.index(layer_of(target)) > order.index(layer_of(module))
        and (module, target) not in layers["EXCEPTIONS"]
    ]


def cycles(layers: dict[str, Any]) -> list[str]:
    """Returns a cycle of modules that import each other, if there is one."""
    try:
        TopologicalSorter({m: layers["imports_of"](m) for m in layers["MODULES"]}).prepare()
    except CycleError as error:
        return [" → ".join(error.args[1])]
    return []


def print_names_and_imports() -> None:
    """Prints violations of the layers, and repeated names."""
    layers = runpy.run_path(str(ROOT / "tests/test_layers.py"))
    for what, found in (("upward imports", upward_imports(layers)), ("cycles", cycles(layers))):
        print(f"{len(found)} {what}", *found, sep="\n  ")
    for what, repeated in (
        ("module names used three times", repeated_modules(ROOT)),
        ("public names defined twice", repeated_names(ROOT)),
    ):
        others = {name: where for name, where in repeated.items() if name not in ON_PURPOSE}
        print(f"{len(others)} {what}, and {len(repeated) - len(others)} on purpose")
        for name, where in repeated.items():
            why = f" ({ON_PURPOSE[name]})" if name in ON_PURPOSE else ""
            print(f"  {name}: {', '.join(where)}{why}")


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yields a folder with the package of a revision."""
    packed = subprocess.run(
        ["git", "archive", revision, str(PACKAGE)], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder)


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table for a terminal; all but the first column are right-aligned."""
    rows = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    aligned = (
        [cell.rjust(width) if at else cell.ljust(width)
         for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )  # fmt: skip
    return "\n".join("  ".join(cells) for cells in aligned)


def main(revisions: list[str]) -> None:
    """Prints the table of the working tree, then the totals of other revisions."""
    now = measure(ROOT)
    print(table([HEAD, *(figures.row(name) for name, figures in now.items())]))
    print(f"\n{len(top_entries(ROOT))} entries at the top: {', '.join(top_entries(ROOT))}")
    print_names_and_imports()
    for revision in revisions:
        with checked_out(revision) as folder:
            before = measure(folder)["total"]
            print(f"\n{len(top_entries(folder))} entries at the top of {revision}\n")
        print(table([HEAD, before.row(revision), now["total"].row("now")]))


if __name__ == "__main__":
    main(sys.argv[1:])
