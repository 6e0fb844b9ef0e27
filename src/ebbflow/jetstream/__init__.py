"""NATS JetStream: connections, publishing, reading by sequence, positions, the embedded server."""
