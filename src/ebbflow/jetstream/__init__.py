"""NATS JetStream: connections, publishing, reading by sequence, positions, the embedded server.

Public are the names below; the modules are Ebbflow's own.
"""

from ebbflow.jetstream.client import AsyncPublisher, Publisher
from ebbflow.jetstream.login import Login
from ebbflow.jetstream.options import PublishOptions
from ebbflow.jetstream.outgoing import Outgoing
from ebbflow.jetstream.publisher import Ack

__all__ = ["Ack", "AsyncPublisher", "Login", "Outgoing", "PublishOptions", "Publisher"]
