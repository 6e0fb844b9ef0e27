"""The SQS source: messages are leased by their visibility timeout, and deleted when settled.

The visibility timeout is renewed while a message is in flight. Several partitions, and several
pipelines, can read one queue: each message goes to one of them. A FIFO queue delivers further
messages of a group only when the earlier ones are deleted, and those of one call are in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError
from typing_extensions import override

from ebbflow.connectors.leases import LeasedMessage, LeasedSource, QueueService
from ebbflow.connectors.sqs.sqs_client import SqsAccess, code_of
from ebbflow.connectors.sqs.sqs_messages import GROUP, read_raw

_LONGEST_CALL = 10
_ALWAYS = ("SentTimestamp", GROUP)
_DEPTHS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
# The lease has expired, or the message is deleted already.
_TOO_LATE = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight")


@dataclass(frozen=True, slots=True)
class SqsSourceSettings:
    """A queue, and the options of calls; see the fields of the spec."""

    access: SqsAccess
    visibility_timeout: int = 30
    max_number_of_messages: int = 10
    wait_time_seconds: int = 1
    attribute_names: tuple[str, ...] = ()
    message_attribute_names: tuple[str, ...] = ()


class SqsSource(LeasedSource):
    """Reads one queue."""

    def __init__(self, settings: SqsSourceSettings) -> None:
        super().__init__(SqsQueue(settings), settings.visibility_timeout)


class SqsQueue(QueueService):
    """One queue; calls are for up to ten messages."""

    most = _LONGEST_CALL

    def __init__(self, settings: SqsSourceSettings) -> None:
        self._settings = settings
        self._access = settings.access
        self._client: Any = None
        self.name = str(settings.access)
        self.lease = settings.visibility_timeout

    @override
    def open(self) -> None:
        """Connects; ``SetupError`` if the queue does not exist."""
        self._client = self._access.connect()
        self._address = self._access.find(self._client)

    @override
    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()

    @override
    def receive(self, limit: int) -> list[LeasedMessage]:
        """Receives up to ten messages, each hidden for the visibility timeout."""
        settings = self._settings
        with self._access.explaining():
            answer = self._client.receive_message(
                QueueUrl=self._address,
                MaxNumberOfMessages=min(limit, settings.max_number_of_messages),
                WaitTimeSeconds=settings.wait_time_seconds,
                VisibilityTimeout=settings.visibility_timeout,
                MessageSystemAttributeNames=[*_ALWAYS, *settings.attribute_names],
                MessageAttributeNames=self._attributes,
            )
        return [
            read_raw(raw, settings.attribute_names, settings.message_attribute_names)
            for raw in answer.get("Messages", ())
        ]

    @property
    def _attributes(self) -> list[str]:
        named = self._settings.message_attribute_names
        return [*named, "ebbflow.*"] if named else ["All"]

    @override
    def settle(self, handles: Sequence[str]) -> None:
        """Deletes messages."""
        self._call("delete_message_batch", [{"ReceiptHandle": handle} for handle in handles])

    @override
    def hide(self, handles: Sequence[str], seconds: int) -> None:
        """Sets the visibility timeout from now on."""
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle in handles]
        self._call("change_message_visibility_batch", entries)

    def _call(self, call: str, entries: list[dict[str, Any]]) -> None:
        numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        with self._access.explaining():
            answer = getattr(self._client, call)(QueueUrl=self._address, Entries=numbered)
            for failed in answer.get("Failed", ()):
                error = ClientError(
                    {
                        "Error": {"Code": failed["Code"], "Message": failed.get("Message", "")},
                        "ResponseMetadata": {
                            "HTTPStatusCode": 400 if failed.get("SenderFault") else 500
                        },
                    },
                    call,
                )
                if code_of(error) not in _TOO_LATE:
                    raise error

    @override
    def depth(self) -> tuple[int, int]:
        """Returns about how many messages are visible or delayed, and how many are in flight."""
        with self._access.explaining():
            answer = self._client.get_queue_attributes(
                QueueUrl=self._address, AttributeNames=list(_DEPTHS)
            )
        visible, delayed, hidden = (int(answer["Attributes"].get(name, 0)) for name in _DEPTHS)
        return visible + delayed, hidden
