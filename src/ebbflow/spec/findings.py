"""Findings, which rules report, and the table of all codes.

A code keeps its meaning for ever, so that scripts and people can rely on it; those of rules that
are no more (EB307) are not used again. Rules speak of
*findings*, which know the field they are about; a finding becomes a ``Problem`` once the place
of that field is known.
"""

from __future__ import annotations

from dataclasses import dataclass

CODES: dict[str, str] = {
    "EB001": "the file cannot be read",
    "EB002": "the file is not valid YAML",
    "EB003": "a key is written twice in one mapping",
    "EB004": "the file has no pipeline in it",
    "EB005": "apiVersion or kind is not one that Ebbflow knows",
    "EB006": "the file holds several pipelines, and which of them is meant is not clear",
    "EB101": "a field that does not exist",
    "EB102": "a required field is missing",
    "EB103": "a value of the wrong type",
    "EB104": "a value that is not allowed",
    "EB105": "not a duration",
    "EB106": "not base64",
    "EB107": "a name that is not a DNS label (RFC 1035)",
    "EB108": "a name that NATS does not allow for a bucket",
    "EB109": "a secret that is not named by a variable, a file or a key of a Secret",
    "EB201": "the pipeline has no vertices",
    "EB202": "the pipeline has no edges",
    "EB203": "the pipeline or MonoVertex has no source",
    "EB204": "the pipeline or MonoVertex has no sink",
    "EB205": "two vertices have the same name",
    "EB206": "a vertex is not exactly one of source, udf and sink",
    "EB207": "a source, udf, sink, serving store or binding does not say exactly one kind",
    "EB208": "user code is asked for but not named",
    "EB209": "a bypass leads to a sink that is not there",
    "EB210": "SQL, a DataFrame function or a Spark sink where it cannot be",
    "EB211": "a serve sink without a serving store, or beside another sink",
    "EB212": "a connector of another package that cannot be loaded or used here",
    "EB301": "an edge names a vertex that does not exist",
    "EB302": "the same edge is written twice",
    "EB303": "a tag condition has no values",
    "EB304": "a vertex has edges it cannot have, or lacks edges it needs",
    "EB305": "a vertex is in no edge",
    "EB306": "no source leads to a vertex, or the graph falls apart into separate ones",
    "EB401": "a python: target is not of the form module:attribute",
    "EB402": "a python: target cannot be imported, is missing or is not callable",
    "EB403": "user code that cannot be made, or called with what its place gives",
    "EB501": "a back-off whose cap is below its interval",
    "EB502": "onFailure is fallback, but there is no fallback sink",
    "EB601": "serving sources or stores of a pipeline that are missing, or that are too many",
    "EB602": "a serving source without a sink that answers",
    "EB603": "something that would leave whoever waits for an answer without one",
    "EB701": "an audit table that does not say where it is",
    "EB702": "an option that the audit table cannot have",
    "EB703": "a retention where Ebbflow cannot delete rows",
    "EB901": "a feature of Numaflow that Ebbflow does not have yet",
    "EB902": "a container that no function is bound to",
}
"""Every code and what it stands for, in one line."""

FieldPath = tuple[str | int, ...]
"""The way to a field, as written in YAML: ``("spec", "vertices", 0, "name")``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with the field at ``path``; ``at_key`` points at its name, not its value."""

    code: str
    message: str
    path: FieldPath
    at_key: bool = False
