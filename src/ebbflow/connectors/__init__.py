"""Sources and sinks: the classes to use them from Python, and their implementation.

    from ebbflow.connectors import Generator, Kafka, Log

    base       the base of all connectors: sections, ``@source`` and ``@sink``, settings
    registry   all connectors, also those that other packages ship
    plans      the plans that sections become, as plain data for workers
    part       parts of a pipeline, written as keyword arguments in Python
    leases     leased messages of a queue, for Postgres, SQS and Pub/Sub
    typed      the classes of parts, generated from the sections
    builtin    the sections of log, blackhole, generator and file

A connector that another package ships has its class here, too: ``sqlite`` is ``Sqlite``. In a
connector's folder, ``spec`` has the sections, and ``source`` and ``sink`` the code that runs.
CONTRIBUTING shows how to add a connector. Programs import the classes; the model of a spec and the
planner import sections and plans. Start with ``base``.
"""

from typing import Any

from ebbflow.connectors.part import Connector, class_name, make_connector
from ebbflow.connectors.typed import (
    AssumeRole,
    BearerToken,
    Blackhole,
    Certificate,
    File,
    Generator,
    Http,
    HttpAuth,
    HttpBatch,
    HttpUser,
    JetStream,
    Kafka,
    Log,
    Nats,
    NatsAuth,
    NatsUser,
    Ports,
    Postgres,
    Pubsub,
    Pulsar,
    PulsarAuth,
    PulsarDeadLetterPolicy,
    PulsarUser,
    Sasl,
    SaslUser,
    SecretRef,
    Serve,
    Serving,
    Spark,
    Sqs,
    Tls,
    Trigger,
)

__all__ = [
    "AssumeRole",
    "BearerToken",
    "Blackhole",
    "Certificate",
    "Connector",
    "File",
    "Generator",
    "Http",
    "HttpAuth",
    "HttpBatch",
    "HttpUser",
    "JetStream",
    "Kafka",
    "Log",
    "Nats",
    "NatsAuth",
    "NatsUser",
    "Ports",
    "Postgres",
    "Pubsub",
    "Pulsar",
    "PulsarAuth",
    "PulsarDeadLetterPolicy",
    "PulsarUser",
    "Sasl",
    "SaslUser",
    "SecretRef",
    "Serve",
    "Serving",
    "Spark",
    "Sqs",
    "Tls",
    "Trigger",
]


def __getattr__(name: str) -> Any:
    """Returns the class of a connector that another package ships."""
    if name.startswith("_") or not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ebbflow.connectors.registry import find_shipped
    from ebbflow.domain.spelling import did_you_mean

    shipped = {class_name(kind): kind for kind in find_shipped()}
    if name not in shipped:
        meant = did_you_mean(name, [*__all__, *shipped], "there are")
        # Not an AttributeError, whose text ``from ebbflow.connectors import ...`` would not show.
        raise ImportError(f"{__name__} has no connector {name!r}; {meant}")
    globals()[name] = made = make_connector(shipped[name])
    return made
