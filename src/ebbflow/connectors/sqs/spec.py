"""SQS in a spec: a queue to read from and a queue to send to, with Numaflow's names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef
from ebbflow.domain.secrets import Secret

if TYPE_CHECKING:
    from ebbflow.connectors.sqs.sqs_client import SqsAccess

QueueName = Annotated[
    StrictStr,
    fields.matching(
        r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo",
        "EB104",
        "{value} is not a queue: use at most 80 letters, digits, '_' and '-', and .fifo at its end",
    ),
]
"""The name of a queue."""

Account = Annotated[
    StrictStr, fields.matching(r"[0-9]{12}", "EB104", "{value} is not an account of 12 digits")
]
"""The number of an AWS account."""

RoleArn = Annotated[
    StrictStr,
    fields.matching(r"arn:[^:]+:iam::[0-9]{12}:role/.+", "EB104", "{value} is not a role's ARN"),
]
"""A role that can be assumed."""


class AssumeRole(Section):
    """A role that the client assumes."""

    role_arn: RoleArn = Field(description="the role")
    session_name: StrictStr = Field(
        default="ebbflow", description="the name of the session, for CloudTrail"
    )
    duration_seconds: Annotated[StrictInt, Field(ge=900, le=43_200)] = Field(
        default=3_600, description="how long a session lasts; it is renewed in time"
    )
    external_id: StrictStr | None = Field(
        default=None,
        alias="externalID",
        description="the external id that a role of another account requires",
    )
    policy: StrictStr | None = Field(
        default=None, description="a policy, as JSON, that narrows the session's permissions"
    )
    policy_arns: tuple[StrictStr, ...] = Field(
        default=(), description="managed policies that narrow them"
    )


class SqsSection(Section):
    """The queue, and how to log in."""

    aws_region: fields.Text = Field(description="the region of the queue")
    queue_name: QueueName = Field(description="the queue; the name of a FIFO queue ends in `.fifo`")
    queue_owner: Annotated[Account | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None,
        alias="queueOwnerAWSAccountID",
        description="the account that owns the queue; left out, that of the login",
    )
    endpoint_url: Annotated[StrictStr | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None, description="another address of the service, such as a VPC endpoint"
    )
    access_key_id_secret: SecretRef | None = Field(
        default=None,
        description="the id of an access key; left out, the AWS client looks at its variables, "
        "files and the role of the machine",
    )
    secret_access_key_secret: SecretRef | None = Field(
        default=None, description="the secret access key"
    )
    session_token_secret: SecretRef | None = Field(
        default=None, description="the token of a temporary access key"
    )
    assume_role: AssumeRole | None = Field(default=None, description="a role to assume")

    @model_validator(mode="after")
    def _has_whole_key(self) -> SqsSection:
        if (self.access_key_id_secret is None) != (self.secret_access_key_secret is None):
            raise PydanticCustomError(
                "EB104",
                "accessKeyIdSecret and secretAccessKeySecret belong together; give both or neither",
            )
        return self

    def access(self) -> SqsAccess:
        """Returns the queue and the login, with all secrets read now."""
        require_extra("SQS", "sqs", "boto3")
        from ebbflow.connectors.sqs.sqs_client import Role, SqsAccess

        def read(ref: SecretRef | None, what: str) -> Secret | None:
            return None if ref is None else ref.read(f"the {what} for SQS")

        role = self.assume_role
        return SqsAccess(
            self.aws_region,
            self.queue_name,
            self.queue_owner,
            self.endpoint_url,
            read(self.access_key_id_secret, "access key's id"),
            read(self.secret_access_key_secret, "secret access key"),
            read(self.session_token_secret, "session token"),
            None if role is None else Role(**role.model_dump()),
        )


@source("sqs", returns=True)
class SqsSourceSpec(SqsSection, SourceSection):
    """Messages of a queue; each is deleted when it is settled."""

    visibility_timeout: Annotated[StrictInt, Field(ge=1, le=43_200)] = Field(
        default=30,
        description="for how many seconds messages of a killed process stay hidden; renewed "
        "while it lives",
    )
    max_number_of_messages: Annotated[StrictInt, Field(ge=1, le=10)] = Field(
        default=10, description="the most messages of one call"
    )
    wait_time_seconds: Annotated[StrictInt, Field(ge=0, le=20)] = Field(
        default=1,
        description="how long a call waits for a message; a stop may take as long",
    )
    attribute_names: tuple[StrictStr, ...] = Field(
        default=(),
        description="attributes that SQS gives a message, such as `ApproximateReceiveCount`, or "
        "`All`: headers of the message",
    )
    message_attribute_names: tuple[StrictStr, ...] = Field(
        default=(),
        description="the message's attributes to read, also as metadata of the group `sqs`; left "
        "out, all, as headers",
    )

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; workers create its client."""
        access = self.access()
        from ebbflow.connectors.sqs.source import SqsSource, SqsSourceSettings

        settings = self.freeze("SQS", SqsSourceSettings, access=access)
        return Pulled(partial(SqsSource, settings))


@sink("sqs")
class SqsSinkSpec(SqsSection, SinkSection):
    """Sends each message to a queue, in batches of ten."""

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read; workers create its client."""
        access = self.access()
        from ebbflow.connectors.sqs.sink import SqsSink

        return UserSink(partial(SqsSink, access))
