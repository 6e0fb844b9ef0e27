"""``ebbflow sql``: Spark SQL over the audit tables of pipelines, as the view ``audit``."""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbflow.cli.options import HERE, JsonOption, ServerOptions

if TYPE_CHECKING:
    from ebbflow.spark.audit.files import AuditResult


def sql(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[PIPELINE] QUERY",
            help='Query such as "select vertex, outcome, count(*) from audit group by 1, 2"; '
            "covers all pipelines unless you name one.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, metavar="NUMBER", help="Print at most this many rows of the table."
        ),
    ] = 200,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Run the query on Spark, whatever the tables are."),
    ] = False,
    server: ServerOptions = HERE,
) -> None:
    """Query the outcomes of messages: Spark SQL over the audit table, as view audit.

    The view dead_letters has the current dead letters. While a pipeline runs, new rows appear after
    an epoch in a Parquet table on this machine, and after audit.interval in others. DuckDB runs
    queries over Parquet on this machine; Spark runs all others.
    """
    from ebbflow.operations.audit_query import query_audit

    if len(words) > 2:
        raise typer.BadParameter("Put the query in quotes.", param_hint="QUERY")
    *pipeline, query = words
    state, nats = server.state, server.nats
    with query_audit(query, *pipeline, state=state, nats=nats, spark=spark) as result:
        if as_json:
            for row in result.rows():
                typer.echo(json.dumps(dict(zip(result.columns, map(_plain, row), strict=True))))
        elif as_csv:
            writer = csv.writer(sys.stdout)
            writer.writerow(result.columns)
            writer.writerows([_text(value) for value in row] for row in result.rows())
        else:
            _print_table(result, limit)


def _print_table(result: AuditResult, limit: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from ebbflow.status.terminal import console_for, one_line

    table = Table()
    for name in result.columns:
        table.add_column(name, overflow="fold")
    rows = result.rows()
    for row in islice(rows, limit):
        table.add_row(*(Text(one_line(_text(value))) for value in row))
    console_for(sys.stdout).print(table)
    if _has_more(rows):
        typer.echo(f"These are the first {limit:,} rows; --limit N prints more.", err=True)


def _has_more(rows: Iterator[Any]) -> bool:
    return next(rows, None) is not None


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any) -> Any:
    """Returns a value of a row as a type that JSON supports."""
    match value:
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        case date() | Decimal() | timedelta():
            return str(value)
        case bytes() | bytearray():
            return _plain_bytes(bytes(value))
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
    return value


def _plain_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
