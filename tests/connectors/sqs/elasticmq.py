"""ElasticMQ, a second server that speaks the protocol of SQS: quick, and written by others.

Its jars, 37 MB, are fetched once by Ivy, as those of Kafka are. It keeps queues in memory.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from typing_extensions import override

from tests.connectors.kafka.jars import NoBroker, java, keep, run_ivy
from tests.connectors.sqs.server import Sqs

IVY_FILE = Path(__file__).with_name("ivy.xml")
_SETTINGS = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


def jars() -> Path:
    """The folder with the jars; raises ``NoBroker`` if they are not available."""

    def fetch(place: Path) -> Path:
        run_ivy(IVY_FILE, place, ("jar", "bundle"))
        if not list(place.glob("files/elasticmq-server*.jar")):
            raise NoBroker("its jars cannot be fetched")
        return place / "files"

    return keep("elasticmq", IVY_FILE, fetch)


class ElasticMq(Sqs):
    """A server with queues."""

    @override
    def _start(self, port: int) -> subprocess.Popen[bytes]:
        self._folder = tempfile.TemporaryDirectory(prefix="ebbflow-elasticmq-")
        settings = Path(self._folder.name) / "elasticmq.conf"
        settings.write_text(_SETTINGS.format(port=port), encoding="utf-8")
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return subprocess.Popen(
            [
                java(), *options, f"-Dconfig.file={settings}", "-cp", f"{jars()}/*",
                "org.elasticmq.server.Main",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @override
    def close(self) -> None:
        super().close()
        self._folder.cleanup()
