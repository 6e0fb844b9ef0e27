"""The contract of a sink: N messages in, N responses out, each id exactly once, in any order.

Messages with exactly one valid response keep it, whatever the others did. Every other message is
treated as failed with a ``ContractViolation`` that names the sink, the ids and the fix, so it is
redelivered with back-off and finally dead-lettered. Nothing stalls and nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from ebbflow.core.verdict import Verdict
from ebbflow.errors import ContractViolation
from ebbflow.message import Datum, Response, Status
from ebbflow.outcome import DeadLetter


def answered(verdict: Verdict, start: int, batch: Sequence[Datum], answers: Any) -> None:
    """Record the responses to ``batch``, whose first message is the input at ``start``."""
    responses = _responses(verdict.vertex, answers)
    times = Counter(response.id for response in responses)
    given = {response.id: response for response in responses}
    violations = _violations(verdict.vertex, batch, times)
    for offset, datum in enumerate(batch):
        if times[datum.id] == 1:
            _record(verdict, start + offset, given[datum.id])
        else:
            verdict.raised(start + offset, violations)


def _responses(vertex: str, answers: Any) -> list[Response]:
    if not isinstance(answers, Iterable) or isinstance(answers, (str, bytes)):
        raise ContractViolation(
            vertex,
            f"returned {type(answers).__name__} where a list of responses belongs",
            fix="Return one Response a message, for example [Response.ok(d.id) for d in data].",
        )
    responses = list(answers)
    wrong = next((r for r in responses if not isinstance(r, Response)), None)
    if wrong is not None:
        raise ContractViolation(
            vertex,
            f"returned {type(wrong).__name__} where a Response belongs",
            fix="Make responses with Response.ok, .failure or .nack.",
        )
    return responses


def _violations(vertex: str, batch: Sequence[Datum], times: Counter[str]) -> ContractViolation:
    ids = {datum.id for datum in batch}
    found = {
        "no response": [datum.id for datum in batch if not times[datum.id]],
        "several responses": [i for i in times if times[i] > 1 and i in ids],
        "responses for unknown ids": [i for i in times if i not in ids],
    }
    what = "; ".join(f"{kind} for {len(hit)}" for kind, hit in found.items() if hit)
    return ContractViolation(
        vertex,
        f"answered {times.total()} responses to {len(batch)} messages: {what}",
        [i for hit in found.values() for i in hit],
        "Return exactly one Response for each message of the batch, with its id.",
    )


def _record(verdict: Verdict, index: int, response: Response) -> None:
    match response.status:
        case Status.OK:
            pass
        case Status.NACK:
            verdict.nack(index, response.nack_options)
        case Status.FAILURE:
            verdict.outcomes[index] = DeadLetter("sink failure", error=response.error)
        case Status.FALLBACK | Status.SERVE | Status.ON_SUCCESS:
            verdict.raised(index, _unconfigured(verdict.vertex, response))
        case never:
            assert_never(never)


def _unconfigured(vertex: str, response: Response) -> ContractViolation:
    return ContractViolation(
        vertex,
        f"answered {response.status.name}, which this sink has nothing configured for",
        [response.id],
        "Answer with Response.ok, .failure or .nack.",
    )
