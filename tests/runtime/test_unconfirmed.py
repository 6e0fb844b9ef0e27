"""NATS that confirms nothing any more is reported once, with its error; so is the recovery."""

from ebbflow.nats.disk import Unconfirmed
from ebbflow.nats.publish import Tally


class Run:
    """A run that checks every half second."""

    def __init__(self) -> None:
        self.now, self.reported = 0.0, []
        self._watch = Unconfirmed("nats://a", self.reported.append, lambda: self.now)

    def look(self, seconds: float, **grows: int) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.tally += Tally(**grows)
            self._watch.look({"v": self.tally})

    tally = Tally()


def test_missing_confirmations_are_reported_once_after_a_while_and_so_is_recovery() -> None:
    run = Run()
    run.look(10, attempts=1, confirmed=1)
    run.look(20, attempts=1, unanswered=1)
    run.look(20, attempts=1, confirmed=1)
    assert run.reported == [
        "NATS at nats://a has confirmed nothing that v wrote for 5 s: it does not answer; see "
        "whether its disk is full, and what is in its log; nothing is lost, and the vertex retries "
        "until it works",
        "NATS at nats://a confirms again what v writes",
    ]


def test_the_error_of_the_server_is_reported() -> None:
    run = Run()
    run.look(2)
    run.tally = Tally(refusal="insufficient resources")
    run.look(8, attempts=1, refused=1)
    (text,) = run.reported
    assert "it says 'insufficient resources'; see whether its disk or a limit" in text


def test_occasional_answers_full_buffers_and_idle_vertices_are_not_reported() -> None:
    run = Run()
    for _ in range(10):
        run.look(4, attempts=2, unanswered=2)
        run.look(0.5, attempts=1, confirmed=1)
    run.look(20, attempts=1, full=1)
    run.look(20)
    run.look(4, attempts=1, unanswered=1)
    assert run.reported == []
