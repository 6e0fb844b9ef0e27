"""A data source for Spark: streams of NATS JetStream in any Spark job, without a pipeline.

    from ebbflow.datasource import register

    register(spark)
    orders = spark.read.format("jetstream").option("stream", "ORDERS").load()

Reads are by sequence and can be repeated exactly; rows are written until they are stored, and once.
Programs import it, and nothing in Ebbflow does. Start with ``jetstream``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ebbflow.spark.versions import require_data_source

require_data_source()  # before the imports that an older PySpark does not have

from ebbflow.datasource.jetstream import JetStreamDataSource  # noqa: E402
from ebbflow.domain.errors import DataLoss, DataSourceError  # noqa: E402
from ebbflow.nats.locate import NATS_URL  # noqa: E402
from ebbflow.nats.login import Login  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLoss", "DataSourceError", "JetStreamDataSource", "register"]


def register(spark: SparkSession, url: str | None = None, login: Login | None = None) -> None:
    """Make ``format("jetstream")`` known to a Spark session.

    ``url`` is where NATS is for all that have no option ``url``, and ``login`` how to get in there.
    Both are taken from the environment if left out, as it is now. They go to the workers by
    themselves and are shown nowhere.
    """
    known = {
        "url": url or os.environ.get(NATS_URL),
        "login": Login.from_environment() if login is None else login,
    }
    # Spark makes the source in processes whose environment is that of the time when it was started.
    spark.dataSource.register(type("JetStreamDataSource", (JetStreamDataSource,), known))
