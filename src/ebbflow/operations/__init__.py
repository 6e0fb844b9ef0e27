"""Operations on a pipeline from outside: pause, send, tap, trace, read answers, query audits.

Each module works over NATS on a pipeline that runs or has ended. Commands and the web UI import it;
lower layers do not. Start with ``sending``.
"""

from ebbflow.engine.answers import Answer
from ebbflow.operations.audit_query import query_audit
from ebbflow.operations.stored_answers import StoredAnswers, answers
from ebbflow.spark.audit.files import AuditResult
from ebbflow.streams.answer_bucket import ServingStore

__all__ = ["Answer", "AuditResult", "ServingStore", "StoredAnswers", "answers", "query_audit"]
