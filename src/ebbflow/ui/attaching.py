"""The page and the metrics beside a run: of its pipeline alone, on threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from ebbflow.nats.login import Addresses
from ebbflow.runtime.run import Attachment
from ebbflow.ui.address import METRICS_PORT, PAGE_PORT, PageAddress, parse_address
from ebbflow.ui.links import ServerLink
from ebbflow.ui.server import open_page


def attach_pages(ui: bool | str, metrics: bool | str) -> list[Attachment]:
    """Returns what a run opens beside itself; ``SetupError`` for an address that is none.

    Each is ``False`` for no, ``True`` for the usual address, or ``HOST:PORT``. The page has the
    metrics too, so that two of the same address are one.
    """
    page = None if ui is False else parse_address(ui, PAGE_PORT)
    numbers = None if metrics is False else parse_address(metrics, METRICS_PORT)
    attachments: list[Attachment] = []
    if page is not None:
        attachments.append(partial(_open, "ui", page))
    if numbers is not None and numbers != page:
        attachments.append(partial(_open, "metrics", numbers))
    return attachments


@contextmanager
def _open(
    name: str,
    address: PageAddress,
    server: Addresses,
    pipeline: str,
    tell: Callable[[str], None],
) -> Iterator[Mapping[str, str]]:
    is_page = name == "ui"
    with open_page(address, ServerLink(server), [pipeline], whole=is_page) as entrance:
        if is_page:
            entrance.announce(tell, "page at")
        else:
            entrance.announce(tell, "metrics at", "metrics")
        yield {name: entrance.url if is_page else f"{entrance.url}metrics"}
