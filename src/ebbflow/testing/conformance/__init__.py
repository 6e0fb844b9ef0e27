"""The conformance suite: one list of rules that every source and every sink has to pass."""
