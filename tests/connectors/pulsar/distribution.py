"""The broker's files: fetched once by Ivy, as those of Kafka are, and kept for later runs."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.connectors.kafka.jars import NoBroker, keep, run_ivy

IVY_FILE = Path(__file__).with_name("ivy.xml")


def distribution() -> Path:
    """The folder with ``bin/pulsar``; raises ``NoBroker`` if it is not available."""
    return keep("pulsar", IVY_FILE, _fetch)


def _fetch(place: Path) -> Path:
    run_ivy(IVY_FILE, place, ("tar.gz",))
    archives = list((place / "files").glob("*.tar.gz"))
    if not archives:
        raise NoBroker("its distribution cannot be fetched")
    with tarfile.open(archives[0]) as tar:
        tar.extractall(place, filter="data")
    (folder,) = place.glob("apache-pulsar-*")
    return folder
