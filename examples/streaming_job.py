"""A Structured Streaming job that gains dead letters and redelivery for single rows.

``job`` is the job as it was: one row whose total is no number fails the query, again and again,
until somebody removes it. ``pipeline`` uses the same ``priced``, unchanged. There the bad row alone
becomes a dead letter with Spark's error, and a row in a currency without a rate is redelivered. It
writes to another folder: Spark reads only what the query has written from a folder of a query.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ebbflow import Pipeline
from ebbflow.connectors import Spark

ORDER = "order STRING, total STRING, currency STRING"
RATES = [("EUR", 1.0), ("USD", 0.9)]


def priced(orders: DataFrame) -> DataFrame:
    """Totals in euros; ``euros`` is null where there is no rate."""
    rates = orders.sparkSession.createDataFrame(RATES, "currency STRING, rate DOUBLE")
    euros = F.col("total").cast("double") * F.col("rate")
    return orders.join(F.broadcast(rates), "currency", "left").withColumn("euros", euros)


def job(spark: SparkSession, folder: Path) -> StreamingQuery:
    """The job as it was."""
    orders = spark.readStream.schema(ORDER).json(f"{folder}/orders")
    writer = priced(orders).select("order", "euros").writeStream.format("parquet")
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/priced")


def priced_messages(messages: DataFrame) -> DataFrame:
    """The same for messages: takes the orders out of them, and gives each result its outcome."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    orders = messages.select("id", order).select("id", "order.*")
    return priced(orders).select(
        "id",
        F.to_json(F.struct("order", "euros")).alias("value"),
        F.col("euros").isNull().alias("nack"),
        F.lit(1000).alias("nack_delay"),
        F.lit(2).alias("nack_max_deliveries"),
        F.lit("no rate for this currency yet").alias("nack_reason"),
    )


def pipeline(folder: Path) -> Pipeline:
    """The job as a pipeline."""
    orders = Spark(format="json", options={"path": f"{folder}/orders"}, schema=ORDER)
    results = {"path": f"{folder}/results"}
    return (
        Pipeline("priced-orders")
        .source("in", orders)
        .map("price", dataframe=priced_messages)
        .sink("out", Spark(format="parquet", options=results, schema="order STRING, euros DOUBLE"))
    )


if __name__ == "__main__":
    pipeline(Path.cwd()).run()
