"""Kafka → enrich → Postgres: orders get the names of their customers and are upserted.

An order whose customer is not known yet is redelivered a minute later, for an hour at most. When
Postgres is down, the sink waits for it, and no order is penalised. ``onConflict: update`` makes the
last order with an id win.
"""

from pydantic import BaseModel

from ebbflow import Nack, Pipeline
from ebbflow.connectors import Kafka, Postgres, SecretRef

CUSTOMERS = {1: "Ada", 2: "Grace"}


class Order(BaseModel):
    id: int
    customer: int
    total: float


class NamedOrder(Order):
    name: str


def enrich(order: Order) -> NamedOrder:
    if order.customer not in CUSTOMERS:
        raise Nack(f"customer {order.customer} not known yet", delay="1m", max_deliveries=60)
    return NamedOrder(**order.model_dump(), name=CUSTOMERS[order.customer])


orders = (
    Pipeline("orders")
    .source("in", Kafka(brokers=["localhost:9092"], topic="orders"))
    .map("enrich", enrich, decode=Order, encode="json")
    .sink(
        "out",
        Postgres(
            url="postgresql://shop@localhost:5432/shop",
            password_secret=SecretRef(env="SHOP_PASSWORD"),
            table="orders",
            on_conflict="update",
        ),
    )
)

if __name__ == "__main__":
    orders.run()
