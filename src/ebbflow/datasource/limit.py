"""Where a micro-batch has to end that may hold only so many messages.

Sequences are easy to count and messages are not: some are deleted, some have another subject. So
the end is searched for, with few questions, and it is never too far.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Count = Callable[[int], Awaitable[int]]
"""The number of messages from the start of the batch up to and including a sequence."""

_QUESTIONS = 4
_GOOD_ENOUGH = 0.8


async def limited(before: int, last: int, most: int, count: Count) -> int:
    """A sequence up to which there are at most ``most`` messages, and not far fewer as a rule.

    ``before`` is the sequence right before the first message, ``last`` that of the last one.
    """
    near, far = min(before + most, last), last + 1  # as many messages as sequences, at most
    guess = last
    for _ in range(_QUESTIONS):
        guess = max(near + 1, min(guess, far - 1))
        if guess >= far:
            break
        found = await count(guess)
        if found > most:
            far = guess
        else:
            near = guess
            if found >= most * _GOOD_ENOUGH:
                break
        # As if messages lay evenly; there is at least one behind ``before``.
        guess = before + (guess - before) * most // max(found, 1)
    return near
