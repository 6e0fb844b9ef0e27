"""Serving: where answers to requests are stored and found again."""
