"""A store of the user's own, read where the pipeline was started or by whoever wants its answers.

Workers put answers into it, each with an instance of its own; here it is made, opened and asked.
What the store keeps has to be in a system that all its instances share.
"""

from __future__ import annotations

from pathlib import Path

from ebbflow.domain.code import Code
from ebbflow.engine.answers import Answer, own_answers
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.usercode.calling import Handler
from ebbflow.usercode.targets import resolve
from ebbflow.usercode.variables import Variables, in_environment


class OwnStore:
    """A store of the user's that is open for reading. Used by one thread at a time.

    ``search`` is the folder that has its code, ``variables`` are those of its container. Opening it
    and asking it raise what the user's code raises.
    """

    def __init__(self, code: Code, search: str | None, variables: Variables = ()) -> None:
        with in_environment(variables):  # modules may look at it when they are imported
            folder = Path(search) if search else None
            target = resolve(code, folder) if isinstance(code, str) else code
        self._handler = Handler(adapt(target, "store"), variables=variables)

    def get(self, request: str) -> list[Answer]:
        """Returns all answers to a request so far, in the order of the store."""
        handler = self._handler
        with in_environment(handler.variables):
            payloads: list[bytes] = handler.finish(handler.instance.get(request))
        return own_answers(request, payloads)

    def close(self) -> None:
        """Closes the store."""
        self._handler.close()
