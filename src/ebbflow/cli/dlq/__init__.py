"""``ebbflow dlq``: list, show, replay, export and purge the dead letters of a pipeline."""

from ebbflow.cli.dlq.commands import app

__all__ = ["app"]
