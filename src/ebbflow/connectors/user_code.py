"""User code in a spec: user-defined sources and sinks, and the base of all sections with code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

from pydantic import Field, PrivateAttr

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.container import Container, Program
from ebbflow.connectors.schema.fields import Section
from ebbflow.domain.code import Code, Mode, SinkMode, Variables
from ebbflow.numaflow.process import BATCH_ROWS, FunctionPlan, check_docker
from ebbflow.numaflow.pynumaflow.recognition import Place
from ebbflow.numaflow.services import service_of
from ebbflow.usercode import targets


@dataclass(frozen=True, slots=True)
class Bound:
    """The replacement of a container: Python code, or a function in its own process.

    ``code`` is called in ``mode``, if set. ``programs`` have the variables; if two set the same
    variable, the later program's value holds.
    """

    programs: tuple[Program, ...]
    code: str | None = None
    mode: Mode | None = None
    function: FunctionPlan | None = None


class CodeSection(Section):
    """User code: a Python function or class, or a container.

    The replacement of a container is known when the spec is bound (see ``spec.binder``).
    """

    PLACE: ClassVar[Place] = "map"
    """The place in a pipeline that the code is written for."""

    container: Container | None = Field(
        default=None,
        description="the [function](../guides/numaflow.md#functions-in-other-languages) as a "
        "container; next to `python`, only its variables count",
    )
    python: fields.Code | None = Field(
        default=None,
        description="the function or class, found next to the file or on the Python path",
    )
    _bound: Bound | None = PrivateAttr(default=None)

    def bind(self, bound: Bound | None) -> None:
        """Sets the replacement of the container."""
        self._bound = bound

    @property
    def bound(self) -> Bound | None:
        """The replacement of the container, if known."""
        return self._bound

    @property
    def in_process(self) -> Code | None:
        """The Python code to call, if Python code runs here."""
        return self.python or (self._bound.code if self._bound is not None else None)

    @property
    def code(self) -> Code:
        """The function or class, or its name; lint refuses a section without code."""
        if self.in_process is not None:
            return self._adapt(self.in_process)
        plan = self.plan_function()
        return partial(targets.resolve(service_of(plan.container).caller), plan)

    def _adapt(self, code: Code) -> Code:
        """Adapts an object for calling; a name is adapted where it is imported.

        Objects are adapted on the driver, not on the worker: a function that was sent there has
        lost its module, and a pynumaflow server cannot be sent.
        """
        from ebbflow.numaflow.pynumaflow.adapters import adapt  # lint does without Arrow

        return code if isinstance(code, str) else cast("Code", adapt(code, self.PLACE))

    @property
    def call_mode(self) -> Mode:
        """What one call of the code gets."""
        bound = self._bound
        if self.in_process is None:
            return "columnar"
        mode = bound.mode if bound is not None and self.python is None else None
        own: Mode = getattr(self, "mode", "unary")
        return mode or own

    @property
    def variables(self) -> Variables:
        """The variables for Python code; a function's own process has them anyway."""
        return () if self.in_process is None else self._read_variables()

    def plan_function(self) -> FunctionPlan:
        """Returns the function to start. The driver calls it, because it reads secrets."""
        function = self._bound.function if self._bound is not None else None
        assert function is not None, "lint refuses a container that nothing is bound to"
        require_extra("A function in its own process", "grpc", "hpack", "google.protobuf")
        if function.docker:
            check_docker()
        return replace(function, env=self._read_variables())

    def _read_variables(self) -> Variables:
        programs = self._bound.programs if self._bound is not None else (self.container,)
        owner = f"the container {self.container.image}" if self.container is not None else ""
        read = (program.read_variables(owner) for program in programs if program is not None)
        return tuple(dict(pair for variables in read for pair in variables).items())


@source("udsource", returns=True)
class UserSourceSpec(CodeSection, SourceSection):
    """A user-defined class that messages are read from."""

    PLACE = "source"

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the user's class, to be called in a process next to the task."""
        return Pulled(self.code, self.variables)


@sink("udsink", answers=True)
class UserSinkSpec(CodeSection, SinkSection):
    """A user-defined function or class that is called with messages."""

    PLACE = "sink"
    mode: SinkMode = Field(
        default="batch",
        description="what one call gets and returns: [sinks](../guides/sinks.md#columns)",
    )

    def plan(self) -> UserSink:
        """Returns the user's code."""
        # Lint has refused a mode that is not for sinks.
        mode = cast("SinkMode", self.call_mode)
        rows = BATCH_ROWS if self.in_process is None else None
        return UserSink(self.code, mode, rows, self.variables, strategy_decides=False)
