"""User code in a spec: a source or a sink of the user's own, and whatever else takes code."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ebbflow.connectors.plans import Pulled, UserSink
from ebbflow.connectors.section import SinkSection, SourceSection
from ebbflow.schema import fields
from ebbflow.schema.fields import Section
from ebbflow.schema.literals import Code, SinkMode


class CodeSection(Section):
    """Code of the user's: a Python function or class, or a container."""

    METHODS: ClassVar[tuple[str, ...]] = ()
    """The methods that a class must have to be used here."""

    container: Any = Field(default=None, description="not run; `python` is needed beside it")
    python: fields.Code | None = Field(
        default=None,
        description="the function or class, found beside the file or on the Python path",
    )

    @property
    def code(self) -> Code:
        """The function or class, or its name; lint refuses a section without it."""
        assert self.python is not None, "lint refuses user code without python:"
        return self.python


class UserSourceSpec(CodeSection, SourceSection):
    """A class of the user's that is asked for messages."""

    METHODS = ("read", "ack")

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the user's class, to be called in a process beside the task."""
        return Pulled(self.code)


class UserSinkSpec(CodeSection, SinkSection):
    """A function or class of the user's that is called with messages."""

    mode: SinkMode = Field(
        default="batch",
        description="what one call gets, and how it answers: [sinks](../guides/sinks.md#columns)",
    )

    def plan(self, retried: bool) -> UserSink:
        """Returns the user's code."""
        return UserSink(self.code, self.mode)
