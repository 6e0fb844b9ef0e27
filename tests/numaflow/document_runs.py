"""Documents in Numaflow's format, run unchanged: posts go in, and the output is checked."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ebbflow.spec.lint import load
from ebbflow.status.run_report import Summary
from ebbflow.testing.background_run import BackgroundRun, until

BINDINGS = """\
redis-sink: {python: "shelves:Shelf"}
my-sink: {python: "shelves:Shelf"}
serving-redis-store: {command: [PYTHON, -m, ebbflow, serve-udf, "shelves:Memory"]}
""".replace("PYTHON", sys.executable)

SHELVES = '''\
"""A sink that writes each payload as a line to the file that a variable names, and a store."""

import json
import os
from pathlib import Path

from ebbflow import Datum, Response


class Shelf:
    def __init__(self) -> None:
        self.file = Path(__file__).with_name(os.environ.get("SINK_HASH_KEY", "shelf") + ".kept")

    def __call__(self, data: list[Datum]) -> list[Response]:
        with self.file.open("a") as file:
            file.writelines(datum.value.decode() + "\\n" for datum in data)
        return [Response.ok(datum.id) for datum in data]


class Memory:
    def file_of(self, id: str) -> Path:
        return Path(__file__).with_name(f"{id}.answers")

    def put(self, id: str, payloads: list[bytes]) -> None:
        texts = [payload.decode() for payload in payloads]
        self.file_of(id).write_text(json.dumps(texts))

    def get(self, id: str) -> list[bytes]:
        file = self.file_of(id)
        texts = json.loads(file.read_text()) if file.exists() else []
        return [text.encode() for text in texts]
'''

_PRINTED = re.compile(r"\((?P<vertex>[^),]+)[^)]*\) .*?(?:payload|metadata)=(?P<payload>\S*)")
_LISTENING = re.compile(r"takes messages at (\S+)")
_ANSWERING = re.compile(r"answers requests at (\S+)")
_PATIENCE = 60.0


@dataclass(frozen=True)
class Post:
    """One message for the HTTP source."""

    body: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One request to a serving source, and the answers to it, in their order."""

    body: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """The result of a document when messages are posted to it.

    ``kept`` are payloads by the vertex that prints them, or by the variable of the sink that keeps
    them; exactly these. ``at_least`` are numbers of payloads, where they never end.
    ``read`` is how many messages a vertex has read at the end. ``questions`` are asked in every way
    in which a request can be made.
    """

    posts: tuple[Post, ...] = ()
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Expectation:
        """Returns the part of it that a document with other names can meet."""
        facts = (self.kept, self.at_least, self.read)
        chosen = ({names[n]: fact for n, fact in part.items() if n in names} for part in facts)
        return Expectation(self.posts, *chosen, self.questions)


class DocumentRun(BackgroundRun):
    """A document that runs with a bindings file and code next to it, in a folder of its own."""

    def __init__(self, document: Path, folder: Path) -> None:
        self._folder = folder
        self._urls: dict[str, str] = {}
        self._desk: SplitResult | None = None
        self._printed: dict[str, list[str]] = defaultdict(list)
        shutil.copy(document, folder / "document.yaml")
        (folder / "bindings.yaml").write_text(BINDINGS)
        (folder / "shelves.py").write_text(SHELVES)
        spec = load(folder / "document.yaml")
        super().__init__(
            SimpleNamespace(spec=spec),
            folder / "state",
            self._note,
            search=folder,  # type: ignore[arg-type]
        )

    def stage(self, text: str) -> None:
        """Keeps the addresses of HTTP sources, and of what answers requests."""
        self._urls |= {urlsplit(url).path: url for url in _LISTENING.findall(text)}
        self._desk = next(map(urlsplit, _ANSWERING.findall(text)), self._desk)

    def _note(self, line: str) -> None:
        self.stage(line)
        if printed := _PRINTED.match(line):
            self._printed[printed["vertex"]].append(printed["payload"])

    def post(self, post: Post) -> None:
        """Posts a message to every HTTP source, as ``curl -k`` does."""
        for url in map(urlsplit, self._urls.values()):
            connection = _connect(url)
            connection.request("POST", url.path, post.body.encode(), dict(post.headers))
            assert connection.getresponse().status == 200
            connection.close()

    def ask(self, body: str) -> list[str]:
        """Asks and waits; returns the answers, cut where the response says that each ends."""
        headers, answers = self._request("POST", "sync", body)
        lengths = [int(part) for part in headers["Numaflow-Array-Index-Len"].split(",")]
        ends = list(accumulate(lengths, initial=0))
        return [answers[start:end] for start, end in pairwise(ends)]

    def leave(self, body: str) -> str:
        """Asks, waits for the end by asking for the status, and fetches what has come."""
        _, taken = self._request("POST", "async", body)
        query = f"?id={json.loads(taken)['id']}"
        status = partial(self._request, "GET", f"status{query}")
        assert until(lambda: json.loads(status()[1])["status"] == "completed", _PATIENCE)
        return self._request("GET", f"fetch{query}")[1]

    def follow(self, body: str) -> list[str]:
        """Asks, and returns the answers in the order in which they came."""
        _, events = self._request("POST", "sse", body)
        *answers, end = events.strip().split("\n\n")
        assert end.startswith("event: done")
        return [line[6:] for each in answers for line in each.split("\n") if "data: " in line]

    def _request(self, method: str, path: str, body: str = "") -> tuple[Mapping[str, str], str]:
        assert self._desk is not None, "nothing answers requests"
        connection = _connect(self._desk)
        connection.request(method, f"{self._desk.path}/{path}", body.encode())
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        return response.headers, text

    def kept(self, name: str) -> list[str]:
        """Returns what a vertex has printed, or what a sink has kept under this name."""
        file = self._folder / f"{name}.kept"
        lines = file.read_text().splitlines() if file.exists() else self._printed[name]
        return sorted(lines)

    def has_met(self, expected: Expectation) -> bool:
        """Returns whether all that is expected has arrived, and has been read."""
        return (
            all(len(self.kept(name)) >= len(all_) for name, all_ in expected.kept.items())
            and all(len(self.kept(name)) >= count for name, count in expected.at_least.items())
            and all(self._read_by(name) >= count for name, count in expected.read.items())
        )

    def _read_by(self, name: str) -> int:
        return sum(vertex.counts.read for vertex in self.status.vertices if vertex.name == name)


def _connect(url: SplitResult) -> http.client.HTTPConnection:
    if url.scheme == "http":
        return http.client.HTTPConnection(url.netloc, timeout=_PATIENCE)
    # A certificate that a source makes for itself is signed by no authority.
    context = ssl._create_unverified_context()
    return http.client.HTTPSConnection(url.netloc, timeout=_PATIENCE, context=context)


def run_document(document: Path, folder: Path, expected: Expectation) -> Summary:
    """Runs a document until it has produced what is expected, and no further."""
    live = DocumentRun(document, folder)
    try:
        for post in expected.posts:
            live.post(post)
        for question in expected.questions:
            assert live.ask(question.body) == list(question.answers)
            assert live.leave(question.body) == "".join(question.answers)
            assert sorted(live.follow(question.body)) == sorted(question.answers)
        met = until(lambda: live.has_met(expected), _PATIENCE)
    finally:
        summary = live.stop()
    names = (*expected.kept, *expected.at_least)
    seen: dict[str, Any] = {name: live.kept(name) for name in names}
    assert met, (seen, live.failures)
    assert {name: seen[name] for name in expected.kept} == {
        name: sorted(payloads) for name, payloads in expected.kept.items()
    }
    assert {name: summary.vertices[name].read for name in expected.read} == dict(expected.read)
    return summary
