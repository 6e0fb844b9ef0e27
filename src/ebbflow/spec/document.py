"""YAML files as plain data, with the place of every key and value.

Only plain YAML is read: no tag can create anything but mappings, lists, texts, numbers, booleans
and nulls. Reading any file returns documents and problems, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ebbflow.domain.errors import Problem
from ebbflow.spec.validate import FieldPath, Finding

_TAG = "tag:yaml.org,2002:"
_TYPED = {f"{_TAG}{name}" for name in ("null", "bool", "int", "float")}
# Dates stay text, as in all programs that read Kubernetes' files.
_TEXT = {f"{_TAG}{name}" for name in ("str", "timestamp", "value")}
_MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class LineColumn:
    """A line and column, counted from 1."""

    line: int
    column: int


@dataclass
class Document:
    """One YAML document: its data, and the place of every key and value in it."""

    file: str
    data: Any = None
    keys: dict[FieldPath, LineColumn] = field(default_factory=dict)
    values: dict[FieldPath, LineColumn] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, finding: Finding) -> Problem:
        """Returns the finding with its place in the file."""
        return _problem(self.file, self._place(finding), finding.code, finding.message)

    def _place(self, finding: Finding) -> LineColumn:
        """Returns where the field is written, else the nearest mapping or list around it."""
        path = finding.path
        if finding.at_key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values[path]


def read(file: Path) -> tuple[list[Document], list[Problem]]:
    """Returns the documents of a file that are not empty, and the problems of YAML itself."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [], [Problem(str(file), 1, 1, "EB001", f"cannot be read: not UTF-8 text ({error})")]
    except OSError as error:
        why = error.strerror or type(error).__name__
        return [], [Problem(str(file), 1, 1, "EB001", f"cannot be read: {why}")]
    return _parse(text, str(file))


def _parse(text: str, file: str) -> tuple[list[Document], list[Problem]]:
    documents: list[Document] = []
    problems: list[Problem] = []
    try:
        for document in _documents(text, file):
            documents.append(document)
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        message = f"a character that YAML does not allow: {chr(int(error.character))!r}"
        problems.append(Problem(file, len(before), len(before[-1]) + 1, "EB002", message))
    except yaml.MarkedYAMLError as error:
        place = _at(error.problem_mark or error.context_mark)
        message = _with_advice(" ".join(filter(None, (error.problem, error.context))))
        problems.append(Problem(file, place.line, place.column, "EB002", message))
    except RecursionError:
        problems.append(Problem(file, 1, 1, "EB002", "nested too deeply"))
    if not documents and not problems:
        problems.append(Problem(file, 1, 1, "EB004", "the file is empty"))
    return documents, problems


def _with_advice(message: str) -> str:
    """Returns what the parser says, with what to look at if the indentation is wrong."""
    if message.startswith("found character '\\t'"):
        return f"{message}: indent with spaces, not with tabs"
    if message.startswith("expected <block end>, but found"):
        return f"{message}: indent this line like the others of its list or mapping"
    return message


def _documents(text: str, file: str) -> Iterator[Document]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and node.tag != f"{_TAG}null":
                yield _Conversion(loader, Document(file)).convert(node)
    finally:
        loader.dispose()


def _problem(file: str, place: LineColumn, code: str, message: str) -> Problem:
    return Problem(file, place.line, place.column, code, message)


def _at(mark: yaml.Mark | None) -> LineColumn:
    return LineColumn(1, 1) if mark is None else LineColumn(mark.line + 1, mark.column + 1)


class _Conversion:
    """Turns one tree of YAML nodes into data, and records the places."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._open: set[yaml.Node] = set()

    def convert(self, node: yaml.Node) -> Document:
        self._document.data = self._value(node, ())
        return self._document

    def _value(self, node: yaml.Node, path: FieldPath) -> Any:
        self._document.values[path] = _at(node.start_mark)
        # Aliases can make a short text expand to endless data.
        if node in self._open or len(self._document.values) > _MOST_VALUES:
            raise self._refuse(node, "an alias that makes the document endless or very large")
        self._open.add(node)
        try:
            return self._convert(node, path)
        finally:
            self._open.discard(node)

    def _convert(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise self._refuse(node, f"the tag {node.tag!r} is not allowed here")

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        self._note_duplicates(node)
        self._loader.flatten_mapping(node)
        data: dict[str, Any] = {}
        for key, value in node.value:
            name = self._key(key)
            self._document.keys[(*path, name)] = _at(key.start_mark)
            data[name] = self._value(value, (*path, name))
        return data

    def _note_duplicates(self, node: yaml.MappingNode) -> None:
        first: dict[str, LineColumn] = {}
        for key, _ in node.value:
            name = self._key(key)
            if name in first:
                message = f"{name!r} is already written in line {first[name].line}"
                place = _at(key.start_mark)
                problem = _problem(self._document.file, place, "EB003", message)
                self._document.problems.append(problem)
            first.setdefault(name, _at(key.start_mark))

    def _key(self, node: yaml.Node) -> str:
        # The text as written: an unquoted "on" is a name here, not a boolean.
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        raise self._refuse(node, "a key must be a text")

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _TEXT:
            return node.value
        if node.tag not in _TYPED:
            raise self._refuse(node, f"the tag {node.tag!r} is not allowed here")
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError):
            raise self._refuse(node, f"{node.value!r} does not fit its tag") from None

    def _refuse(self, node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
