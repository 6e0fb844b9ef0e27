"""A real Kafka broker for tests: what it is made of, how it is started, what tests ask of it."""
