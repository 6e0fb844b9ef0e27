"""A slow API with ``Retry-After``: each answer of the API has an outcome of its own.

429 is about one request: the message is nacked and redelivered when the API says. 503 is about the
API: the vertex waits for it, and no message is penalised. 404 will not become better: the message
is a dead letter at once. A connection that fails counts as an API that is down without any code.
"""

from functools import partial
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from ebbflow import Datum, Limits, Message, Nack, Pipeline, Unavailable
from ebbflow.connectors import Http, Log


def convert(api: str, datum: Datum) -> Message:
    try:
        with urlopen(f"{api}/rates/{quote(datum.text)}", timeout=10) as answer:  # noqa: S310
            return Message(answer.read(), keys=datum.keys)
    except HTTPError as error:
        wait = f"{error.headers.get('Retry-After', '5')}s"
        if error.code == 429:
            raise Nack("over the limit of the API", delay=wait, max_deliveries=10) from None
        if error.code == 503:
            raise Unavailable("the rates API", retry_after=wait) from None
        return Message.to_fail(f"the API says {error.code}: {error.reason}")


def rates(api: str) -> Pipeline:
    return (
        Pipeline("rates")
        .source("in", Http())
        .map("convert", partial(convert, api), limits=Limits(concurrency=8))
        .sink("out", Log())
    )


if __name__ == "__main__":
    rates("http://localhost:9000").run()
