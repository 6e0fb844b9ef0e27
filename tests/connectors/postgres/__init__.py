"""A real Postgres for tests: how it is found, started, restarted and asked."""
