"""That NATS takes nothing any more is told once, with what it says; so is the end of it."""

from ebbflow.nats.disk import Unconfirmed
from ebbflow.nats.publish import Tally


class Run:
    """A run that looks every half second."""

    def __init__(self) -> None:
        self.now, self.told = 0.0, []
        self._watch = Unconfirmed("nats://a", self.told.append, lambda: self.now)

    def look(self, seconds: float, **grows: int) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.tally += Tally(**grows)
            self._watch.look({"v": self.tally})

    tally = Tally()


def test_silence_is_told_after_a_while_and_once_and_so_is_its_end() -> None:
    run = Run()
    run.look(10, attempts=1, confirmed=1)
    run.look(20, attempts=1, unanswered=1)
    run.look(20, attempts=1, confirmed=1)
    assert run.told == [
        "NATS at nats://a has confirmed nothing that v wrote for 5 s: it does not answer; see "
        "whether its disk is full, and what is in its log; nothing is lost, and the vertex retries "
        "until it works",
        "NATS at nats://a confirms again what v writes",
    ]


def test_what_the_server_says_is_told() -> None:
    run = Run()
    run.look(2)
    run.tally = Tally(refusal="insufficient resources")
    run.look(8, attempts=1, refused=1)
    (told,) = run.told
    assert "it says 'insufficient resources'; see whether its disk or a limit" in told


def test_an_answer_now_and_then_a_full_buffer_and_having_nothing_to_write_are_fine() -> None:
    run = Run()
    for _ in range(10):
        run.look(4, attempts=2, unanswered=2)
        run.look(0.5, attempts=1, confirmed=1)
    run.look(20, attempts=1, full=1)
    run.look(20)
    run.look(4, attempts=1, unanswered=1)
    assert run.told == []
