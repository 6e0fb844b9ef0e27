"""``ebbflow send``: send messages to a vertex, from arguments, lines or JSON."""

from __future__ import annotations

import base64
import binascii
import json
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from ebbflow.cli.options import (
    HERE,
    JsonOption,
    PipelineArgument,
    ServerOptions,
    VertexArgument,
    parse_seconds,
)

if TYPE_CHECKING:
    from ebbflow.operations.sending import SentMessage

_AT_ONCE = 1_000
_JSON_FIELDS = {"id", "value", "keys", "headers", "event_time"}


def send(
    pipeline: PipelineArgument,
    vertex: VertexArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE",
            help="Messages to send; each line of standard input by default.",
            show_default=False,
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Message id; only when sending a single message."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Key of every message; can be repeated.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header of every message; can be repeated."),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help="Read one JSON object per line: value, and optionally id, keys, headers, "
            "event_time.",
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait while the buffer is full.")
    ] = "60s",
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Send messages to a vertex.

    Each message is stored once the command confirms it, even while nothing runs. An id sent again
    within two minutes is stored once.
    """
    from ebbflow.operations.sending import Sender

    patience = parse_seconds(timeout, "--timeout")
    pages = _pages(values, id, key or [], _headers(header or []), json_lines)
    stored = copies = 0
    with server.open(pipeline) as (link, names):
        sender = Sender(link, names, vertex, patience)
        try:
            for page in pages:
                report = sender.send_page(page)
                stored, copies = stored + len(report.ids), copies + report.copies
                for message_id in report.ids if as_json else ():
                    typer.echo(json.dumps({"vertex": vertex, "id": message_id, "stored": True}))
        finally:
            if stored and not as_json:
                typer.echo(_report(stored, copies, vertex))


def _report(stored: int, copies: int, vertex: str) -> str:
    again = f"; {copies:,} were there already" if copies else ""
    return f"Stored {stored:,} message{'' if stored == 1 else 's'} for {vertex}{again}."


def _headers(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, separator, _ in pairs:
        if not (name and separator):
            raise typer.BadParameter("write NAME=VALUE.", param_hint="--header")
    return {name: value for name, _, value in pairs}


def _pages(
    values: list[str] | None,
    id: str | None,
    keys: list[str],
    headers: dict[str, str],
    json_lines: bool,
) -> Iterator[list[SentMessage]]:
    """Yields messages as they arrive, in lists of up to a thousand."""
    from ebbflow.operations.sending import SentMessage

    if values:
        if id is not None and len(values) > 1:
            raise typer.BadParameter("is for one message.", param_hint="--id")
        if json_lines:
            raise typer.BadParameter("is for standard input.", param_hint="--json-lines")
        yield [SentMessage(value.encode(), id, keys, headers) for value in values]
        return
    if id is not None:
        raise typer.BadParameter("is for a message on the command line.", param_hint="--id")
    number = 0
    for lines in _gather(sys.stdin.buffer):
        page = []
        for line in lines:
            number += 1
            if json_lines and not line.strip():
                continue
            made: dict[str, Any] = _from_json(line, number) if json_lines else {"value": line}
            made["headers"] = headers | made.get("headers", {})
            page.append(SentMessage(**{"keys": keys} | made))
        if page:
            yield page


def _gather(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yields lines as soon as they arrive: many at a time from a file, one as it is typed."""
    lines: queue.Queue[bytes | None] = queue.Queue(2 * _AT_ONCE)

    def read() -> None:
        for line in stream:
            lines.put(line.rstrip(b"\n").removesuffix(b"\r"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get()) is not None:
        yield [line, *_available(lines)]


def _available(lines: queue.Queue[bytes | None]) -> Iterable[bytes]:
    for _ in range(_AT_ONCE - 1):
        try:
            line = lines.get_nowait()
        except queue.Empty:
            return
        if line is None:
            lines.put(None)  # the next get() has to see the end as well
            return
        yield line


def _from_json(line: bytes, number: int) -> dict[str, Any]:
    """Returns the fields of a message. An error names the line and the reason."""
    try:
        data = json.loads(line)
        if not isinstance(data, dict) or "value" not in data:
            raise ValueError("it is not an object with a value")
        if unknown := sorted(set(data) - _JSON_FIELDS):
            raise ValueError(f"it has the unknown field {unknown[0]!r}")
        made = data | {"value": _value(data["value"])}
        if "event_time" in data:
            time = datetime.fromisoformat(data["event_time"])
            made["event_time"] = time if time.tzinfo else time.replace(tzinfo=UTC)
        return made
    except (ValueError, TypeError, binascii.Error) as error:
        raise typer.BadParameter(f"line {number}: {error}.", param_hint="--json-lines") from None


def _value(value: Any) -> bytes:
    """Returns the bytes of text, decoded base64, or any other value as JSON."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value).encode()
