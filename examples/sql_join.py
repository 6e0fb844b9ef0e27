"""A SQL join: orders get the names of their customers from a table, in one query for each batch.

An order of a customer that is not in the table is nacked and redelivered, here after a second, and
is joined with the table as it is then. After three redeliveries it is a dead letter.
"""

from pathlib import Path

from ebbflow import Pipeline
from ebbflow.connectors import Spark


def named_orders(folder: Path) -> Pipeline:
    """Reads ``orders`` and ``customers`` in the folder, JSON both, and writes ``named``."""
    query = f"""
        SELECT o.id, to_json(struct(o.order.*, c.name)) AS value,
               c.name IS NULL AS nack, 1000 AS nack_delay, 3 AS nack_max_deliveries,
               'customer not known yet' AS nack_reason
        FROM (
          SELECT id, from_json(string(value), 'customer INT, total INT') AS order FROM messages
        ) o LEFT JOIN json.`{folder}/customers` c ON o.order.customer = c.customer
    """  # noqa: S608
    order = "customer INT, total INT"
    named = f"{order}, name STRING"
    return (
        Pipeline("named-orders")
        .source(
            "in",
            Spark(format="json", options={"path": f"{folder}/orders"}, schema=order, stream=False),
        )
        .map("join", sql=query)
        .sink("out", Spark(format="json", options={"path": f"{folder}/named"}, schema=named))
    )


if __name__ == "__main__":
    named_orders(Path.cwd()).run(drain=True)
