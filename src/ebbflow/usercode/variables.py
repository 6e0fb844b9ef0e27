"""The variables of a container, and references among them, as Kubernetes writes them.

A container's variables reach the user code that runs in its place; ``calling`` sets them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Variables = tuple[tuple[str, str], ...]
"""Names and values, in their order; a value may refer to variables, as Kubernetes writes it."""

CONTAINER_TYPE = "NUMAFLOW_UD_CONTAINER_TYPE"
"""The variable in which Numaflow says what a container is for."""

_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with variables put in, as Kubernetes does it.

    ``$(NAME)`` is a variable, or stays as it is if there is none; ``$$`` is a dollar sign.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def literal(text: str) -> str:
    """Returns the text so that ``expand`` gives it back as it is."""
    return text.replace("$", "$$")


def expand_all(variables: Variables, around: Mapping[str, str]) -> dict[str, str]:
    """Returns the values with references put in: to variables before them, and to those around."""
    known = dict(around)
    for name, value in variables:
        known[name] = expand(value, known)
    return {name: known[name] for name, _ in variables}
