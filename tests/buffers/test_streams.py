"""Streams of a pipeline: a server that cannot keep them as they are wanted."""

from __future__ import annotations

import pytest

from ebbflow.buffers import streams
from ebbflow.errors import SetupError


def test_replicas_on_a_single_server_are_refused_with_what_to_do(link, names):
    name = names.dead_letters
    refused = (
        f"Stream {name} is to be kept by 3 servers, but NATS is a single one. "
        "Use a cluster of at least 3, or set interStepBuffer.replicas to 1."
    )
    for _ in range(2):
        with pytest.raises(SetupError) as error:
            link.run(streams.ensure(link.client, streams.dead_letter_config(names, replicas=3)))
        assert str(error.value) == refused
        # A stream that exists already is not brought to three replicas either.
        link.run(streams.ensure(link.client, streams.dead_letter_config(names)))
