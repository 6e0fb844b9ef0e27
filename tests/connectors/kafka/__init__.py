"""A real Kafka broker for tests: its files, how it is started, and what tests need of it."""
