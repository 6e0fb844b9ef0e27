"""HTTP → Parquet: each post is a reading, and each bad one is a dead letter with its reason.

    curl -d '{"sensor": "a", "celsius": 21.5}' http://localhost:8080/vertices/in
    ebbflow dlq list readings

A bad reading fails alone: those that arrive with it are written. Posts are answered when they are
stored.
"""

import json

from ebbflow import Datum, Message, Pipeline
from ebbflow.connectors import Http, Spark


def check(datum: Datum) -> Message:
    try:
        reading = datum.json()
        sensor, celsius = str(reading["sensor"]), float(reading["celsius"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        return Message.to_fail(f"not a reading: {type(error).__name__}: {error}")
    if not -90 <= celsius <= 60:
        return Message.to_fail(f"no place on earth has {celsius} °C")
    return Message.json({"sensor": sensor, "celsius": celsius}, keys=[sensor])


readings = (
    Pipeline("readings")
    .source("in", Http())
    .map("check", check)
    .sink(
        "out",
        Spark(
            format="parquet",
            options={"path": "readings"},
            schema="sensor STRING, celsius DOUBLE",
            partition_by=["sensor"],
        ),
    )
)

if __name__ == "__main__":
    readings.run()
