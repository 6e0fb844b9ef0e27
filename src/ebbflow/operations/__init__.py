"""What people do to a pipeline from outside: pause, send, tap, trace, read answers, query audits.

Each module works on a running pipeline, and on one that has ended, over NATS. Commands and the web
UI import it; nothing below does. Start with ``sending``.
"""

from ebbflow.engine.answers import Answer
from ebbflow.operations.stored_answers import StoredAnswers, answers
from ebbflow.streams.answer_bucket import ServingStore

__all__ = ["Answer", "ServingStore", "StoredAnswers", "answers"]
