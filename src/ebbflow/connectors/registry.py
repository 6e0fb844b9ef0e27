"""The table of connectors: every kind of source and sink, with what the engine must know of it.

Lint, planner, provisioning, permissions, builders and reference pages read these tables and name no
kind themselves. A new connector is a folder beside this module and a line in each table that it
belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.connectors.blackhole.spec import BlackholeSpec
from ebbflow.connectors.file.spec import FileSinkSpec
from ebbflow.connectors.generator.spec import GeneratorSpec
from ebbflow.connectors.http.spec import HttpSinkSpec, HttpSourceSpec
from ebbflow.connectors.jetstream.spec import JetStreamSinkSpec, JetStreamSourceSpec
from ebbflow.connectors.kafka.spec import KafkaSinkSpec, KafkaSourceSpec
from ebbflow.connectors.log.spec import LogSpec
from ebbflow.connectors.nats.spec import NatsSinkSpec, NatsSourceSpec
from ebbflow.connectors.section import SinkSection, SourceSection
from ebbflow.connectors.serving.spec import ServeSinkSpec, ServingSourceSpec
from ebbflow.connectors.spark.spec import SparkSinkSpec, SparkSourceSpec
from ebbflow.connectors.user_code.spec import UserSinkSpec, UserSourceSpec


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: its section, and how its messages come to the vertex.

    ``feeds`` if a feed on the driver stores them in the vertex's own buffer first. ``returns`` if
    nacked messages may go back to the outside system, which a ledger then records. ``remembers`` if
    the ids that senders gave are written down, to recognise copies. ``serves`` if each message is a
    request whose caller waits for answers: all vertices of the pipeline then write down what became
    of every message. With none of these the vertex's task makes the messages itself.
    """

    section: type[SourceSection]
    feeds: bool = False
    returns: bool = False
    remembers: bool = False
    serves: bool = False


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink: its section. ``batched`` if Spark writes whole batches of its messages.

    ``answers`` if it can answer a request.
    """

    section: type[SinkSection]
    batched: bool = False
    answers: bool = False


SOURCES: dict[str, SourceKind] = {
    "generator": SourceKind(GeneratorSpec),
    "udsource": SourceKind(UserSourceSpec, returns=True),
    "http": SourceKind(HttpSourceSpec, feeds=True, remembers=True),
    "jetstream": SourceKind(JetStreamSourceSpec, returns=True),
    "nats": SourceKind(NatsSourceSpec, feeds=True),
    "kafka": SourceKind(KafkaSourceSpec, returns=True),
    "spark": SourceKind(SparkSourceSpec, feeds=True),
    "serving": SourceKind(ServingSourceSpec, feeds=True, serves=True),
}

SINKS: dict[str, SinkKind] = {
    "log": SinkKind(LogSpec),
    "blackhole": SinkKind(BlackholeSpec),
    "serve": SinkKind(ServeSinkSpec, answers=True),
    "udsink": SinkKind(UserSinkSpec, answers=True),
    "http": SinkKind(HttpSinkSpec),
    "file": SinkKind(FileSinkSpec),
    "jetstream": SinkKind(JetStreamSinkSpec),
    "nats": SinkKind(NatsSinkSpec),
    "kafka": SinkKind(KafkaSinkSpec),
    "spark": SinkKind(SparkSinkSpec, batched=True),
}

_OWN_SOURCE = "write a udsource with a client of your choice"
_OWN_SINK = "write a udsink with a client of your choice"

SOURCES_NOT_YET = {
    "pulsar": _OWN_SOURCE,
    "sqs": _OWN_SOURCE,
}
"""Numaflow's sources that are not here: a spec may name them, and lint says what to do instead."""

SINKS_NOT_YET = {
    "pulsar": _OWN_SINK,
    "sqs": _OWN_SINK,
}
"""Numaflow's sinks that are not here."""
