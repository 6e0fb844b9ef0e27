"""The serving source: requests over HTTP, and their answers."""
