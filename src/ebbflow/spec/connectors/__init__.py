"""The sections of connectors: one module for each outside system."""
