"""NATS and JetStream: logins, connections, publishing, pulling, the embedded server."""
