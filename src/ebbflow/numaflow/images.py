"""The images that Ebbflow has code for, by the names of their repositories.

An image is known by the last two parts of its name, whatever its registry and tag: those of
``quay.io/numaio/numaflow-go/map-cat:stable`` are ``numaflow-go`` and ``map-cat``. The folder must
be that of one of Numaflow's SDKs, so a user's own ``team/map-cat`` is left alone. Most names mean
the same in every SDK; where they do not, the table has the folder as well. The code itself is in
``image_functions``, which lint does not import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ebbflow.domain.code import Mode
from ebbflow.numaflow.services import ContainerType

_IMAGE = re.compile(
    r"(?:.*/)?(?P<sdk>numaflow-(?:go|python|java|rs))(?:-examples)?/(?P<name>[^/:@]+)(?:[:@].*)?"
)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The code that stands in for an image, where it can stand, and what one call of it gets.

    ``mode`` is that of a map, a transformer or a sink; a source has none.
    """

    place: ContainerType
    target: str
    mode: Mode | None


def _entries(container: ContainerType, mode: Mode | None, **names: str) -> dict[str, BuiltIn]:
    """Returns entries for functions that run in one mode, each with the names of its images."""
    return {
        name: BuiltIn(container, f"ebbflow.numaflow.image_functions:{function}", mode)
        for function, images in names.items()
        for name in images.split()
    }


BUILT_IN: dict[str, BuiltIn] = {
    **_entries(
        "udf",
        "columnar",
        cat="map-cat batchmap-cat map-forward-message map-async-forward-message multiproc",
        even_odd="map-even-odd even-odd",
        even_odd_keys="numaflow-rs/map-even-odd",
        flatmap="map-flatmap map-flatmap-stream flat-map-stream batch-map-flatmap",
        flatmap_with_keys="batchmap-flatmap flatmap-stream",
    ),
    **_entries(
        "udf",
        "unary",
        even_odd_bytes="numaflow-python/even-odd",
        filter_greetings="map-filter",
        filter_small_ids="map-filter-id",
        RetryRounds="map-retry",
        add_metadata="map-metadata",
        tag_for_bypass="map-bypass-cat",
    ),
    **_entries(
        "transformer",
        "columnar",
        assign_event_time="mapt-assign-event-time source-transformer-now",
        filter_event_time="mapt-event-time-filter mapt-event-time-filter-function "
        "async-mapt-event-time-filter",
    ),
    **_entries(
        "transformer",
        "unary",
        filter_keyed_greetings="mapt-filter",
        add_event_time="transformer-metadata",
        tag_for_bypass_now="source-transformer-bypass",
    ),
    **_entries(
        "udsink",
        "columnar",
        log="sink-log async-sink-log simple-sink",
        log_metadata="sink-metadata",
        send_to_fallback="fb-sink-log",
        send_to_on_success="on-success-log",
        send_to_either="all-sinks on-success-sink",
        serve="sink-serve",
        fail="sink-failure sink-retry-e2e",
        panic="sink-panic",
    ),
    **_entries(
        "udsource",
        None,
        CountingSource="source-simple-source simple-source",
        CountingMetadataSource="source-metadata",
    ),
}
"""The code that stands in for each image, by its name, or by its folder and name."""


def find_built_in(image: str) -> BuiltIn | None:
    """Returns what stands in for an image, or ``None`` if nothing does."""
    parts = _IMAGE.fullmatch(image)
    if parts is None:
        return None
    name = parts["name"]
    return BUILT_IN.get(f"{parts['sdk']}/{name}") or BUILT_IN.get(name)
