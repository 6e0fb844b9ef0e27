"""The contract of a sink: N messages in, N responses out, each id exactly once, in any order.

Messages with exactly one valid response keep it, whatever the other responses are. Every other
message is treated as failed with a ``ContractViolation`` that names the sink, the ids and the fix,
so it is redelivered with back-off and finally dead-lettered. Nothing stalls and nothing is lost. A
sink that is annotated ``-> None`` responds by returning; one that merely forgets to return breaks
the contract.

A columnar sink responds only for the rows that it has not simply written. An exception in place of
a response is the error that the row failed with. A row with an unusable response has failed. A
response for a row that does not exist might be meant for any row, so every row without a valid
response has failed then.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter, itemgetter
from typing import Any, assert_never

from ebbflow.domain.errors import ContractViolation, Unavailable
from ebbflow.domain.message import Datum, Message, NackOptions, Response, Status
from ebbflow.domain.outcome import DeadLetter
from ebbflow.engine.verdict import Verdict

_ROWS_FIX = (
    "Return None when all rows are written, or {row: response} for the others, counting rows from "
    "0. Make responses with the class methods of Response, without an id and the rest by name."
)

_STATUS_OF, _ID_OF = attrgetter("status"), attrgetter("id")

UNTRIED = object()
"""A columnar sink's response for a row that it has not tried: it is redelivered as it was."""

SENT_TO_FALLBACK = DeadLetter("sent to the fallback sink")
"""The dead letter of a message that was sent to the fallback sink by choice, not by failure."""


def record_answers(
    verdict: Verdict,
    start: int,
    batch: Sequence[Datum],
    answers: Any,
    fail_unavailable: bool = False,
) -> list[tuple[int, BaseException]]:
    """Records the responses to ``batch``, whose first message is the input at ``start``.

    Returns the rows for which a system is unavailable, each with the error that says so. With
    ``fail_unavailable`` these rows are recorded as failed instead.
    """
    if _all_done(verdict.rows.column("id")[start : start + len(batch)], answers):
        return []
    vertex = verdict.rules.vertex
    valid, wrong = _sort_responses(vertex, answers)
    by_id: defaultdict[str, deque[Response]] = defaultdict(deque)
    for response in valid:
        by_id[response.id].append(response)
    # A message that was delivered twice may be in one batch twice, and then gets two responses.
    copies = Counter(datum.id for datum in batch)
    kept = {i for i, number in copies.items() if len(by_id[i]) == number}
    violation = _violation(vertex, copies, by_id, wrong)
    down: list[tuple[int, BaseException]] = []
    for index, datum in enumerate(batch, start):
        if datum.id not in kept:
            verdict.record_error(index, violation)
        elif error := _record(verdict, index, by_id[datum.id].popleft(), fail_unavailable):
            down.append((index, error))
    return down


def record_rows(
    verdict: Verdict, start: int, count: int, answers: Any, fail_unavailable: bool = False
) -> list[tuple[int, BaseException | None]]:
    """Records a columnar sink's responses for ``count`` rows, beginning at ``start``.

    Returns the rows that failed or for which a system is unavailable, each with the error that says
    so, and with ``None`` those that the sink left ``UNTRIED``. With ``fail_unavailable`` an
    unavailable system is recorded as a failure of the row instead.
    """
    if answers is None:
        return []
    _check_mapping(verdict.rules.vertex, answers)
    faults = {row: _find_row_fault(row, count, answer) for row, answer in answers.items()}
    wrong = {row: fault for row, fault in faults.items() if fault is not None}
    failed: list[tuple[int, BaseException | None]] = []
    for row in answers.keys() - wrong.keys():
        response: Any = answers[row]
        if not isinstance(response, Response):
            failed.append((start + row, None if response is UNTRIED else response))
        elif (error := _record(verdict, start + row, response, fail_unavailable)) is not None:
            failed.append((start + row, error))
    _record_wrong(verdict, start, count, answers, wrong)
    return sorted(failed, key=itemgetter(0))


def _check_mapping(vertex: str, answers: Any) -> None:
    if not isinstance(answers, Mapping):
        raise ContractViolation(
            vertex,
            f"returned {type(answers).__name__} where None or a mapping from rows to responses "
            "belongs",
            fix=_ROWS_FIX,
        )


def _find_row_fault(row: Any, count: int, answer: Any) -> str | None:
    """Returns what is wrong with an entry; the text names a row that does not exist."""
    if not _exists(row, count):
        return f"a response for row {row!r:.40} of {count}"
    if answer is UNTRIED or isinstance(answer, BaseException):
        return None
    if not isinstance(answer, Response):
        return f"{type(answer).__name__} where a Response belongs"
    if answer.id != "":
        return "a Response with an id, or with another argument passed as the id"
    return _find_wrong_fact(answer)


def _exists(row: Any, count: int) -> bool:
    return isinstance(row, int) and not isinstance(row, bool) and 0 <= row < count


def _record_wrong(
    verdict: Verdict, start: int, count: int, answers: Mapping[Any, Any], wrong: Mapping[Any, str]
) -> None:
    """Records an error for the rows with a wrong response, or for all that it may be meant for."""
    if not wrong:
        return
    existing = {row for row in wrong if _exists(row, count)}
    valid = answers.keys() - wrong.keys()
    failed = existing if len(existing) == len(wrong) else set(range(count)) - valid
    ids = verdict.rows.column("id")
    faults = Counter(wrong.values())
    problems = [f"{number} x {fault}" for fault, number in faults.items()]
    violation = ContractViolation(
        verdict.rules.vertex,
        f"returned responses for {len(answers)} of {count} rows: {'; '.join(problems)}",
        [ids[start + row] for row in sorted(existing)],
        _ROWS_FIX,
    )
    verdict.record_errors((start + row for row in sorted(failed)), violation)


def _all_done(ids: Sequence[str], answers: Any) -> bool:
    """Returns whether each message got OK, in order: the common case, quick to check."""
    return (
        type(answers) is list
        and {*map(type, answers)} == {Response}
        and [*map(_STATUS_OF, answers)] == [Status.OK] * len(answers)
        and [*map(_ID_OF, answers)] == ids
    )


def order_results(vertex: str, batch: Sequence[Datum], results: Any) -> list[Any]:
    """Returns a batch map's result for each message, in order; an error where it has none."""
    if not isinstance(results, Mapping):
        raise ContractViolation(
            vertex,
            f"returned {type(results).__name__} where a mapping of results by id belongs",
            fix="Return {datum.id: messages} with an entry for each message of the batch.",
        )
    in_order = [datum.id for datum in batch]
    if type(results) is dict and [*results] == in_order:
        return [*results.values()]
    ids = dict.fromkeys(in_order)
    missing = [i for i in ids if i not in results]
    unknown = [i for i in results if i not in ids]
    violation = ContractViolation(
        vertex,
        f"returned no result for {len(missing)} and results for {len(unknown)} unknown ids "
        f"of {len(batch)} messages",
        [*missing, *map(str, unknown)],
        "Return {datum.id: messages} with an entry for each message of the batch.",
    )
    return [results.get(one, violation) for one in in_order]


def _sort_responses(vertex: str, answers: Any) -> tuple[list[Response], list[str]]:
    """Returns the valid responses, and what is wrong with each invalid one."""
    if not isinstance(answers, Iterable) or isinstance(answers, (str, bytes)):
        raise ContractViolation(
            vertex,
            f"returned {type(answers).__name__} where a list of responses belongs",
            fix="Return one Response for each message: [Response.ok(d.id) for d in data]. A sink "
            "that has written everything when it returns may be annotated -> None instead.",
        )
    valid, wrong = [], []
    for answer in answers:
        problem = _find_fault(answer)
        if problem is None:
            valid.append(answer)
        else:
            wrong.append(problem)
    return valid, wrong


def _find_fault(answer: Any) -> str | None:
    if not isinstance(answer, Response):
        return f"{type(answer).__name__} where a Response belongs"
    if not isinstance(answer.id, str):
        return f"a Response whose id is {type(answer.id).__name__}"
    if not answer.id:
        return "a Response without an id"
    return _find_wrong_fact(answer)


def _find_wrong_fact(answer: Response) -> str | None:
    for what, value, kind in (
        ("status", answer.status, Status),
        ("error", answer.error, str | None),
        ("payload", answer.payload, bytes | None),
        ("message", answer.message, Message | None),
        ("nack_options", answer.nack_options, NackOptions | None),
        ("retry_after", answer.retry_after, int | None),
    ):
        if not isinstance(value, kind):
            return f"a {type(answer).__name__} whose {what} is {type(value).__name__}"
    return None


def _violation(
    vertex: str,
    copies: Counter[str],
    by_id: Mapping[str, Collection[Response]],
    wrong: Sequence[str],
) -> ContractViolation:
    faulty_ids = {
        "no response": [i for i in copies if not by_id[i]],
        "several responses": [i for i in copies if len(by_id[i]) > copies[i]],
        "too few responses": [i for i in copies if 0 < len(by_id[i]) < copies[i]],
        "responses for unknown ids": [i for i in by_id if i not in copies],
    }
    problems = [f"{fault} for {len(ids)}" for fault, ids in faulty_ids.items() if ids]
    problems += [f"{Counter(wrong)[what]} x {what}" for what in dict.fromkeys(wrong)]
    answers = sum(map(len, by_id.values())) + len(wrong)
    return ContractViolation(
        vertex,
        f"answered {answers} responses to {copies.total()} messages: {'; '.join(problems)}",
        [i for ids in faulty_ids.values() for i in ids],
        "Return exactly one Response for each message of the batch, with its id; "
        "make it with the class methods of Response.",
    )


def _record(
    verdict: Verdict, index: int, response: Response, fail_unavailable: bool
) -> Unavailable | None:
    """Records a response; returns the error if the system behind the sink is unavailable."""
    match response.status:
        case Status.OK:
            pass
        case Status.NACK:
            verdict.nack(index, response.nack_options)
        case Status.FAILURE:
            verdict.fail(index, response.error or "failed")
        case Status.FALLBACK | Status.SERVE | Status.ON_SUCCESS if (
            response.status not in verdict.rules.allowed
        ):
            verdict.record_error(index, _unconfigured(verdict, index, response))
        case Status.FALLBACK:
            verdict.decisions.fall_back(index, SENT_TO_FALLBACK)
        case Status.SERVE:
            verdict.decisions.serve(index, response.payload or b"")
        case Status.ON_SUCCESS:
            verdict.request_on_success(index, response.message)
        case Status.UNAVAILABLE if fail_unavailable:
            verdict.fail(index, response.error or "its system")
        case Status.UNAVAILABLE:
            return Unavailable(response.error or "its system", _wait(response))
        case never:
            assert_never(never)
    return None


def _wait(response: Response) -> timedelta | None:
    wait = response.retry_after
    return None if wait is None else timedelta(milliseconds=wait)


_NEEDS = {
    Status.FALLBACK: ("fallback sink", "sink.fallback"),
    Status.SERVE: ("serving store", "spec.servingStore"),
    Status.ON_SUCCESS: ("on-success sink", "sink.onSuccess"),
}


def _unconfigured(verdict: Verdict, index: int, response: Response) -> ContractViolation:
    status, secondary = response.status.name, verdict.rules.secondary
    needed, field = _NEEDS[response.status]
    answers = f"{type(response).__name__}.ok, .failure or .nack."
    ids = [verdict.rows.column("id")[index]]
    if secondary is not None:
        what = f"its {secondary} answered {status}, which only the primary sink can"
        return ContractViolation(verdict.rules.vertex, what, ids, f"There, answer with {answers}")
    what = f"answered {status}, but there is no {needed} for it"
    fix = f"Configure {field}, or answer with {answers}"
    return ContractViolation(verdict.rules.vertex, what, ids, fix)
