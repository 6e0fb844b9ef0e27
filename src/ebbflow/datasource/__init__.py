"""A data source for Spark: NATS JetStream streams in any Spark job, without a pipeline.

    from ebbflow.datasource import register

    register(spark)
    orders = spark.read.format("jetstream").option("stream", "ORDERS").load()

Reads are by sequence and can be repeated exactly. Writes are retried until each row is stored,
once. Programs import this package; nothing in Ebbflow does. Start with ``jetstream``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ebbflow.spark.versions import require_data_source

require_data_source()  # before imports that fail with an older PySpark

from ebbflow.datasource.jetstream import JetStreamDataSource  # noqa: E402
from ebbflow.domain.errors import DataLoss, DataSourceError  # noqa: E402
from ebbflow.nats.locate import NATS_URL  # noqa: E402
from ebbflow.nats.login import Login  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLoss", "DataSourceError", "JetStreamDataSource", "register"]


def register(spark: SparkSession, url: str | None = None, login: Login | None = None) -> None:
    """Registers ``format("jetstream")`` with a Spark session.

    ``url`` is the address of NATS for reads and writes without the option ``url``, and ``login`` is
    the login there. Both default to the current environment. They are sent to the workers and are
    shown nowhere.
    """
    known = {
        "url": url or os.environ.get(NATS_URL),
        "login": Login.from_environment() if login is None else login,
    }
    # Spark creates the source in processes that keep the environment from when Spark was started.
    spark.dataSource.register(type("JetStreamDataSource", (JetStreamDataSource,), known))
