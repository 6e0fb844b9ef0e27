"""The status of a pipeline: one model, on which all views of it are based.

The driver's run creates it; the command line, the web UI and operations read it. Start with
``model``.
"""

from ebbflow.status.model import PipelineStatus, VertexStatus

__all__ = ["PipelineStatus", "VertexStatus"]
