"""JetStream streams of the user's own as a source and as a sink."""
