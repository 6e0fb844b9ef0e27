"""A plain subscriber, which receives what is published to one subject."""

from __future__ import annotations


class Listener:
    """A plain subscriber on the subject, once it has been called; it stays silent or answers."""

    def __init__(self, link, subject):
        self._link = link
        self._subject = subject
        self._subscription = None

    def __call__(self, answer=None):
        received = []

        async def listen(message):
            received.append(message)
            if answer is not None:
                await message.respond(answer)

        self._subscription = self._link.run(self._link.client.subscribe(self._subject, cb=listen))
        self._link.flush()
        return received

    def stop(self):
        if self._subscription is not None:
            self._link.run(self._subscription.unsubscribe())
            self._link.flush()
            self._subscription = None
