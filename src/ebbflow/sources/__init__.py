"""Sources: one module per connector, each with an inlet that a vertex task reads from."""
