"""What a pipeline keeps in NATS, and how it is read and written."""
