"""What the login of a pipeline or MonoVertex must be allowed, from its spec alone."""

from __future__ import annotations

from ebbflow.buffers.names import Names
from ebbflow.buffers.permissions import Permissions, derive_permissions
from ebbflow.spec.model import Spec


def permissions_of(spec: Spec) -> Permissions:
    """Returns the least that a run needs; no secret of a connector is read for it."""
    store = spec.serving_store
    bucket = store.nats.bucket if store is not None and store.nats is not None else None
    return derive_permissions(Names(spec.name), [step.streams for step in spec.steps], bucket)
