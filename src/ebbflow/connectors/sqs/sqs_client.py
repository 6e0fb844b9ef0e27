"""SQS clients: their login, and the meaning of their errors.

An error about a message itself counts against that message. Of all other errors, temporary ones are
``Unavailable``, and the rest are mistakes in the spec or the account: ``SetupError``. No text shows
secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
)
from botocore.session import Session

from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.secrets import Secret

CONNECTIONS = 16
_CONNECT_WITHIN, _ANSWER_WITHIN = 5.0, 10.0
_LONGEST_POLL = 20.0

_PASSING = (
    "Throttl",
    "RequestLimit",
    "TooManyRequests",
    "OverLimit",
    "ServiceUnavailable",
    "InternalError",
    "InternalFailure",
    "ExpiredToken",
    "RequestExpired",
    "KmsThrottled",
)
"""Parts of the codes of temporary errors."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role that the client assumes, and assumes again before its session ends."""

    role_arn: str
    session_name: str
    duration_seconds: int
    external_id: str | None = None
    policy: str | None = None
    policy_arns: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for STS."""
        arguments = {
            "RoleSessionName": self.session_name,
            "DurationSeconds": self.duration_seconds,
            "ExternalId": self.external_id,
            "Policy": self.policy,
            "PolicyArns": [{"arn": arn} for arn in self.policy_arns],
        }
        return {name: value for name, value in arguments.items() if value}


@dataclass(frozen=True, slots=True)
class SqsAccess:
    """A queue and its login."""

    region: str
    queue: str
    owner: str | None = None
    endpoint: str | None = None
    key_id: Secret | None = None
    key: Secret | None = None
    token: Secret | None = None
    role: Role | None = None

    def __str__(self) -> str:
        return f"SQS queue {self.queue} in {self.region}"

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps messages of a group in order."""
        return self.queue.endswith(".fifo")

    def connect(self) -> Any:
        """Returns a client, which connects when it is first used."""
        with self.explaining():
            session = Session()
            if self.key_id is not None and self.key is not None:
                token = None if self.token is None else self.token.reveal()
                session.set_credentials(self.key_id.reveal(), self.key.reveal(), token)
            if self.role is not None:
                self._assume(session, self.role)
            return boto3.Session(botocore_session=session).client(
                "sqs", region_name=self.region, endpoint_url=self.endpoint, config=_CONFIG
            )

    def _assume(self, session: Session, role: Role) -> None:
        fetcher = AssumeRoleCredentialFetcher(
            session.create_client,
            session.get_credentials(),
            role.role_arn,
            role.arguments(),
        )
        # The STS client is created when the role is first assumed, and needs the same region.
        session.set_config_variable("region", self.region)
        session._credentials = DeferredRefreshableCredentials(
            fetcher.fetch_credentials, "assume-role"
        )

    def find(self, client: Any) -> str:
        """Returns the queue's address; ``SetupError`` if there is no such queue."""
        owner = {"QueueOwnerAWSAccountId": self.owner} if self.owner else {}
        with self.explaining():
            address: str = client.get_queue_url(QueueName=self.queue, **owner)["QueueUrl"]
        return address

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Converts the client's errors to ``Unavailable`` or ``SetupError``."""
        try:
            yield
        except ClientError as error:
            raise self._explain(error) from None
        except (ConnectionError, HTTPClientError) as error:
            raise Unavailable(f"{self}: {_one_line(error)}") from None
        except (BotoCoreError, ValueError) as error:
            raise SetupError(
                f"{self} cannot be used: {_one_line(error).rstrip('.')}.",
                "Correct the section or the login.",
            ) from None

    def _explain(self, error: ClientError) -> Unavailable | SetupError:
        code, status = code_of(error), error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status >= 500 or any(part in code for part in _PASSING):
            return Unavailable(f"{self}: {describe_client_error(error)}")
        if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
            return SetupError(
                f"There is no {self} that this login can see.",
                "Create the queue, or correct queueName, awsRegion and queueOwnerAWSAccountID.",
            )
        return SetupError(
            f"{self} refuses: {describe_client_error(error)}.",
            "Correct the login or its permissions.",
        )


_CONFIG = Config(
    connect_timeout=_CONNECT_WITHIN,
    read_timeout=_ANSWER_WITHIN + _LONGEST_POLL,
    retries={"mode": "standard", "max_attempts": 2},
    max_pool_connections=CONNECTIONS,
    user_agent_extra="ebbflow",
)


def code_of(error: ClientError) -> str:
    """Returns the code of an error, without the namespace prefix of older services."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def describe_client_error(error: ClientError) -> str:
    """Returns the service's code and message, on one line."""
    text = str(error.response.get("Error", {}).get("Message") or "").strip().rstrip(".")
    return f"{code_of(error)}: {' '.join(text.split())}" if text else code_of(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
