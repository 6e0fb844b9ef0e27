"""Spark's own JDBC writer: JSON objects from a file into a table, without Ebbflow.

python -m benchmarks.workers.spark_jdbc URL TABLE USER JAR FILE

Prints a line when Spark has started, writes after it has read a line, prints a line when it is
done, and ends with its standard input.
"""

from __future__ import annotations

import os
import sys

_AT_ONCE = 10_000


def main(url: str, table: str, user: str, jar: str, file: str) -> None:
    """Writes with two tasks, in batches that the driver rewrites to statements of many rows."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jar)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    rows = spark.read.schema("id BIGINT, name STRING, amount DECIMAL(20, 2)").json(file)
    rows.limit(1).count()  # loads what reading needs
    print("ready", flush=True)
    sys.stdin.readline()
    properties = {
        "user": user,
        "driver": "org.postgresql.Driver",
        "batchsize": str(_AT_ONCE),
        "reWriteBatchedInserts": "true",
    }
    rows.repartition(2).write.jdbc(url, table, mode="append", properties=properties)
    print("done", flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
