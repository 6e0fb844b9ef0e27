"""Spark SQL over the audit tables of pipelines, on this machine.

``query_audit`` makes a view ``audit`` of the tables, and a view ``dead_letters`` if the query names
it, and returns the result of the query. DuckDB runs queries over Parquet files of this machine: it
starts at once, and Spark takes seconds. Spark runs all other queries. It works while the pipelines
run: rows in a table never change, and a batch is written as a whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ebbflow.deadletters import DeadLetters
from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.spark.audit.files import AuditResult, AuditTables, folder_of, read_format
from ebbflow.streams.catalogue import AUDIT_TABLE
from ebbflow.streams.names import AUDIT, PREFIX, Names, list_pipelines
from ebbflow.streams.provision import explain_unknown

_ADVICE = "Add to the spec: audit: {options: {path: FOLDER}}"


@contextmanager
def query_audit(
    query: str,
    pipeline: str | None = None,
    *,
    state: str | Path = ".ebbflow",
    nats: str | None = None,
    spark: bool = False,
) -> Iterator[AuditResult]:
    """Runs a query and keeps its rows while the context lasts; without a name, over all pipelines.

    Starts an embedded server that is not running, to find the tables. With ``spark``, Spark runs
    the query, whatever the tables are. ``SetupError`` if no table is kept, ``EbbflowError`` if the
    query is wrong, or if DuckDB might run it differently than Spark.
    """
    inbox = {} if pipeline is None else {"inbox": Names(pipeline).inbox}
    with open_link_to_pipeline(Path(state), nats, **inbox) as link:
        tables = _find_tables(link, pipeline)
        letters = _read_letters(link, tables) if "dead_letters" in query.lower() else None
    with _open_engine(AuditTables(tables, letters), spark) as run:
        yield run(query)


def _open_engine(
    audit: AuditTables, spark: bool
) -> AbstractContextManager[Callable[[str], AuditResult]]:
    """Returns the engine for some tables, and imports only this engine."""
    folders = {name: folder_of(read_format(table)) for name, table in audit.tables.items()}
    local = {name: folder for name, folder in folders.items() if folder is not None}
    if spark or len(local) < len(folders):
        from ebbflow.spark.audit.spark_query import open_query

        return open_query(audit)
    from ebbflow.spark.audit.local_query import open_local_query

    return open_local_query(local, audit.letters)


def _find_tables(link: Link, pipeline: str | None) -> dict[str, Mapping[str, Any]]:
    """Returns the audit tables that pipelines keep."""
    streams = link.run(api.list_streams(link.client, PREFIX))
    audited = list_pipelines(streams, AUDIT)
    if pipeline is not None:
        if Names(pipeline).dead_letters not in streams:
            raise explain_unknown(pipeline, streams)
        audited = [name for name in audited if name == pipeline]
    if not audited:
        where = "here" if pipeline is None else f"of pipeline {pipeline!r}"
        raise SetupError(f"There is no audit table {where}.", _ADVICE)
    return {name: _read_table(link, name) for name in audited}


def _read_table(link: Link, pipeline: str) -> Mapping[str, Any]:
    info = link.run(api.call(link.client, f"STREAM.INFO.{Names(pipeline).audit}"))
    table: Mapping[str, Any] = json.loads(info["config"]["metadata"][AUDIT_TABLE])
    return table


def _read_letters(link: Link, pipelines: Sequence[str] | Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "pipeline": pipeline,
            "number": stored.number,
            "vertex": stored.letter.vertex,
            "id": stored.letter.id,
            "reason": stored.letter.reason,
            "error": stored.letter.error,
            "deliveries": stored.letter.deliveries,
            "first_seen": stored.letter.first_seen,
            "last_seen": stored.letter.last_seen,
            "value": stored.letter.value,
        }
        for pipeline in pipelines
        for stored in DeadLetters(link, pipeline).list()
    ]
