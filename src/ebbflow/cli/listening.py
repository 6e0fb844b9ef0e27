"""Options that say where a page listens: ``--ui`` alone, or ``--ui HOST:PORT``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_ADDRESS = re.compile(r"(?:https?://)?(?:\[[0-9a-fA-F:]+\]|[\w.-]*):\d{1,5}|\d{1,5}")
_OPTIONS = ("--ui", "--metrics")

UiOption = Annotated[
    str | None,
    typer.Option(
        "--ui",
        metavar="[[https://]HOST:PORT]",
        help="The run shows itself in a web page; without an address on 127.0.0.1:8321, or on a "
        "free port. Beyond this machine it needs a token, from EBBFLOW_UI_TOKEN or made up at a "
        "terminal.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:PORT]",
        help="The run serves /metrics for Prometheus, /health and /ready; without an address on "
        "127.0.0.1:8322, or on a free port. The page of --ui has them too.",
        show_default=False,
    ),
]


def read_listening(value: str | None) -> bool | str:
    """Returns what an option means: ``False`` if it is missing, ``True`` if it stands alone."""
    return False if value is None else value or True


class ListeningCommand(TyperCommand):
    """A command with options that may stand alone: ``run --ui spec.yaml`` is no address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments that the user has typed."""
        return super().parse_args(ctx, [*complete_addresses(args)])


def complete_addresses(args: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, with an empty value for an option that has no address behind it."""
    for position, arg in enumerate(args):
        follower = args[position + 1] if position + 1 < len(args) else ""
        stands_alone = arg in _OPTIONS and _ADDRESS.fullmatch(follower) is None
        yield f"{arg}=" if stands_alone else arg
