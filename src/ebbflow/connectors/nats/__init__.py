"""Subjects of NATS, without JetStream, as a source and as a sink."""
