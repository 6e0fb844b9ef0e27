"""Stream maps: each message is recorded as it is yielded, and may be forwarded before the next.

What an emitter has forwarded stays forwarded, also when the input is nacked or fails afterwards;
what it has not is taken back then. Without an emitter everything waits until the chunk is settled.
"""

from __future__ import annotations

from ebbflow.domain.message import Message, Nack, Signal
from ebbflow.engine.checks import check_message
from ebbflow.engine.verdict import Verdict


class Stream:
    """The messages that a stream map yields for the inputs of one chunk, one input at a time."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._decisions = verdict.decisions
        self._emitter = verdict.emitter
        self._emitted: set[int] = set()

    def record(self, index: int, number: int, message: Message) -> None:
        """Records the ``number``-th message yielded for the input; a nack is raised."""
        check_message(message, self._verdict.rules)
        if message.signal and message.event_time:
            self._decisions.note_event_times([message.event_time])
        match message.signal:
            case Signal.NACK:
                raise Nack.of(message.nack_options)
            case Signal.FAIL:
                self.withdraw(index)
                self._verdict.fail(index, message.error or "failed")
            case None if index not in self._decisions.failed:
                self._decisions.forward(index, number, message)
                self._emit_if_due()

    def end(self, index: int) -> None:
        """Records that nothing more comes for the input: a drop, if nothing came at all."""
        outputs = self._decisions.outputs
        last = outputs.parents[-1:] if outputs is not None else []
        if index not in self._decisions.failed and index not in self._emitted and index not in last:
            self._decisions.drop(index)

    def withdraw(self, index: int) -> None:
        """Takes back what was yielded for the input and is not forwarded yet."""
        self._decisions.withdraw_from(index)

    def _emit_if_due(self) -> None:
        if self._emitter is None or not self._emitter.is_due():
            return
        # Taken before they are published: outputs that stayed here would be published once more,
        # under another id, when the chunk is settled.
        outputs = self._decisions.take_outputs()
        part = self._verdict.part(self._verdict.rows)
        part.decisions.forward_outputs(outputs)
        written = self._emitter.emit(part)
        if written is None:
            self._decisions.forward_outputs(outputs)
            return
        self._emitted.update(outputs.parents)
        self._decisions.count_emitted(written)
