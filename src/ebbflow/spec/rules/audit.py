"""Rules about the audit table: it says where it is, so that a run does not find out too late."""

from __future__ import annotations

from collections.abc import Iterator

from ebbflow.connectors.spark.settings import FILE_FORMATS
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import Spec

_NOT_OURS = ("mode", "partitionBy", "maxRecordsPerFile")


def check_audit(spec: Spec) -> Iterator[Finding]:
    """Reports an audit table without a place, and options that would take it apart."""
    audit = spec.audit
    path: FieldPath = ("spec", "audit")
    if audit is None:
        return
    if audit.format.lower() not in FILE_FORMATS:
        if audit.retention is not None:
            message = (
                f"rows of a table of the format {audit.format!r} are not deleted: "
                "let its database do that, and leave out 'retention'"
            )
            yield Finding("EB703", message, (*path, "retention"), at_key=True)
        return
    if not audit.options.get("path", "").strip():
        message = "the audit table has no place: give options: {path: FOLDER}"
        yield Finding("EB701", message, path, at_key=True)
    for name in _NOT_OURS:
        if name in audit.options:
            message = f"{name!r} has no place here: each batch of audit rows is one file"
            yield Finding("EB702", message, (*path, "options", name), at_key=True)
