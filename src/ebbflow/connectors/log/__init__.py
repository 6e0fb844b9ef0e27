"""The log sink."""
