"""The contract of a sink: N messages in, N responses out, each id exactly once, in any order.

Messages with exactly one valid response keep it, whatever the others did. Every other message is
treated as failed with a ``ContractViolation`` that names the sink, the ids and the fix, so it is
redelivered with back-off and finally dead-lettered. Nothing stalls and nothing is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

from ebbflow.core.verdict import Verdict
from ebbflow.errors import ContractViolation, Unavailable
from ebbflow.message import Datum, Message, Response, Status
from ebbflow.nacks import NackOptions
from ebbflow.outcome import DeadLetter


def answered(
    verdict: Verdict, start: int, batch: Sequence[Datum], answers: Any
) -> list[tuple[int, BaseException]]:
    """Record the responses to ``batch``, whose first message is the input at ``start``.

    Returns the rows for which a system is away, each with the error that says so.
    """
    if _all_done(batch, answers):
        return []
    valid, wrong = _responses(verdict.vertex, answers)
    given: defaultdict[str, deque[Response]] = defaultdict(deque)
    for response in valid:
        given[response.id].append(response)
    # A message that was delivered twice may be in one batch twice, and is then answered twice.
    copies = Counter(datum.id for datum in batch)
    kept = {i for i, number in copies.items() if len(given[i]) == number}
    violation = _violation(verdict.vertex, copies, given, wrong)
    away: list[tuple[int, BaseException]] = []
    for index, datum in enumerate(batch, start):
        if datum.id not in kept:
            verdict.raised(index, violation)
        elif (response := given[datum.id].popleft()).status is Status.UNAVAILABLE:
            away.append((index, Unavailable(response.error or "its system", response.retry_after)))
        else:
            _record(verdict, index, response)
    return away


def _all_done(batch: Sequence[Datum], answers: Any) -> bool:
    """Whether each message was answered with OK, in order: nearly always so, and quickly seen."""
    return (
        type(answers) is list
        and {type(answer) for answer in answers} == {Response}
        and [answer.status for answer in answers] == [Status.OK] * len(answers)
        and [answer.id for answer in answers] == [datum.id for datum in batch]
    )


def results_by_id(vertex: str, batch: Sequence[Datum], results: Any) -> list[Any]:
    """What a batch map made of each message, in order; an error where it says nothing."""
    if not isinstance(results, Mapping):
        raise ContractViolation(
            vertex,
            f"returned {type(results).__name__} where a mapping of results by id belongs",
            fix="Return {datum.id: messages} with an entry for each message of the batch.",
        )
    ids = dict.fromkeys(datum.id for datum in batch)
    missing = [i for i in ids if i not in results]
    unknown = [i for i in results if i not in ids]
    violation = ContractViolation(
        vertex,
        f"returned no result for {len(missing)} and results for {len(unknown)} unknown ids "
        f"of {len(batch)} messages",
        [*missing, *map(str, unknown)],
        "Return {datum.id: messages} with an entry for each message of the batch.",
    )
    return [results.get(datum.id, violation) for datum in batch]


def _responses(vertex: str, answers: Any) -> tuple[list[Response], list[str]]:
    """The responses that are valid, and what is wrong with the others."""
    if not isinstance(answers, Iterable) or isinstance(answers, (str, bytes)):
        raise ContractViolation(
            vertex,
            f"returned {type(answers).__name__} where a list of responses belongs",
            fix="Return one Response for each message: [Response.ok(d.id) for d in data].",
        )
    valid, wrong = [], []
    for answer in answers:
        problem = _problem(answer)
        if problem is None:
            valid.append(answer)
        else:
            wrong.append(problem)
    return valid, wrong


def _problem(answer: Any) -> str | None:
    if not isinstance(answer, Response):
        return f"{type(answer).__name__} where a Response belongs"
    for what, value, kind in (
        ("id", answer.id, str),
        ("status", answer.status, Status),
        ("error", answer.error, str | None),
        ("payload", answer.payload, bytes | None),
        ("message", answer.message, Message | None),
        ("nack_options", answer.nack_options, NackOptions | None),
        ("retry_after", answer.retry_after, int | None),
    ):
        if not isinstance(value, kind):
            return f"a Response whose {what} is {type(value).__name__}"
    return None


def _violation(
    vertex: str,
    copies: Counter[str],
    given: Mapping[str, Collection[Response]],
    wrong: Sequence[str],
) -> ContractViolation:
    found = {
        "no response": [i for i in copies if not given[i]],
        "several responses": [i for i in copies if len(given[i]) > copies[i]],
        "too few responses": [i for i in copies if 0 < len(given[i]) < copies[i]],
        "responses for unknown ids": [i for i in given if i not in copies],
    }
    problems = [f"{kind} for {len(hit)}" for kind, hit in found.items() if hit]
    problems += [f"{Counter(wrong)[what]} x {what}" for what in dict.fromkeys(wrong)]
    answers = sum(map(len, given.values())) + len(wrong)
    return ContractViolation(
        vertex,
        f"answered {answers} responses to {copies.total()} messages: {'; '.join(problems)}",
        [i for hit in found.values() for i in hit],
        "Return exactly one Response for each message of the batch, with its id; "
        "make it with the class methods of Response.",
    )


def _record(verdict: Verdict, index: int, response: Response) -> None:
    match response.status:
        case Status.OK:
            pass
        case Status.NACK:
            verdict.nack(index, response.nack_options)
        case Status.FAILURE:
            verdict.fail(index, response.error or "failed")
        case Status.FALLBACK | Status.SERVE | Status.ON_SUCCESS if (
            response.status not in verdict.allowed
        ):
            verdict.raised(index, _unconfigured(verdict.vertex, response))
        case Status.FALLBACK:
            verdict.fallback[index] = DeadLetter("sent to the fallback sink")
        case Status.SERVE:
            verdict.served[index] = response.payload or b""
        case Status.ON_SUCCESS:
            verdict.succeeds(index, response.message)
        case Status.UNAVAILABLE:
            raise AssertionError("no decision about the message; see answered")
        case never:
            assert_never(never)


_NEEDS = {
    Status.FALLBACK: ("fallback sink", "sink.fallback"),
    Status.SERVE: ("serving store", "spec.servingStore"),
    Status.ON_SUCCESS: ("on-success sink", "sink.onSuccess"),
}


def _unconfigured(vertex: str, response: Response) -> ContractViolation:
    needed, field = _NEEDS[response.status]
    return ContractViolation(
        vertex,
        f"answered {response.status.name}, but there is no {needed} for it",
        [response.id],
        f"Configure {field}, or answer with Response.ok, .failure or .nack. "
        "Fallback and on-success sinks can answer only with these three.",
    )
