"""A bare boto3 loop: threads that each receive ten, send them, and delete those that were accepted.

python -m benchmarks.workers.sqs_loop ENDPOINT QUEUE_URL OUT_URL
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.workers.at_once import work_at_once

_AT_ONCE = 8


def serve(endpoint: str, queue: str, out: str) -> None:
    """Works until killed."""
    config = Config(max_pool_connections=_AT_ONCE)
    client = boto3.client("sqs", endpoint_url=endpoint, config=config)
    work_at_once(_AT_ONCE, partial(_move, client, queue, out))


def _move(client: Any, queue: str, out: str) -> None:
    asked = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
    messages = client.receive_message(**asked).get("Messages", ())
    handles = {str(number): one["ReceiptHandle"] for number, one in enumerate(messages)}
    if not handles:
        return
    entries = [
        {"Id": number, "MessageBody": one["Body"].upper()}
        for number, one in zip(handles, messages, strict=True)
    ]
    sent = client.send_message_batch(QueueUrl=out, Entries=entries)
    accepted = [one["Id"] for one in sent.get("Successful", ())]
    entries = [{"Id": number, "ReceiptHandle": handles[number]} for number in accepted]
    if entries:
        client.delete_message_batch(QueueUrl=queue, Entries=entries)


if __name__ == "__main__":
    serve(*sys.argv[1:])
