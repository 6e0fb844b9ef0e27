"""Where the answers of a pipeline are: the last run has said so beside its positions."""

from __future__ import annotations

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from ebbflow.streams.streams import ANSWERS, explain_unknown


async def find_bucket(link: Link, pipeline: str) -> str:
    """Returns the bucket that the last run of the pipeline has named beside its positions."""
    return bucket_in(await read_metadata(link, pipeline), pipeline)


def bucket_in(metadata: dict[str, str], pipeline: str) -> str:
    """Returns the bucket that is named there; ``SetupError`` if the pipeline keeps no answers."""
    bucket = metadata.get(ANSWERS)
    if bucket is None:
        raise SetupError(
            f"Pipeline {pipeline!r} keeps no answers.", "Give it servingStore: {nats: {}}."
        )
    return bucket


async def read_metadata(link: Link, pipeline: str) -> dict[str, str]:
    """Returns what the last run of the pipeline has said beside its positions."""
    client, positions = link.client, f"KV_{Names(pipeline).positions}"
    try:
        facts = await api.call(client, f"STREAM.INFO.{positions}")
    except api.ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        raise explain_unknown(pipeline, await api.list_streams(client, "ebb_")) from None
    return facts["config"].get("metadata") or {}
