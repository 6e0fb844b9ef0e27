"""Measurements: one command each, ours and peers side by side in the same run."""
