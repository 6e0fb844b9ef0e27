"""The rules of every outcome as pure functions: no Spark, no NATS, no clock of its own."""
