"""The state of a pipeline in one model, which every view of it draws from.

The driver's run makes it; the command line, the web UI and operations read it. Start with
``model``.
"""

from ebbflow.status.model import PipelineStatus, VertexStatus

__all__ = ["PipelineStatus", "VertexStatus"]
