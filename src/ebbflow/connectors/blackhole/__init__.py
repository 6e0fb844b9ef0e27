"""The blackhole sink."""
