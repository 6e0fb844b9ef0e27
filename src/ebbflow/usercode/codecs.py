"""User code that works on values in place of bytes: ``decode=`` and ``encode=`` of a step.

A map gets the decoded value of a message, and ``encode`` makes a message of its result. A sink gets
a list of decoded values, and has written all of them when it returns. Both run on the worker.

A value that cannot be decoded or encoded counts against its message alone: in a map like an
exception of user code, in a sink like a reported failure. The other messages of a sink's call are
written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from ebbflow.domain.message import Datum, Message, Response, write_json
from ebbflow.engine.blame import USER_ERRORS
from ebbflow.engine.redelivery import describe_error
from ebbflow.usercode.targets import is_class


@runtime_checkable
class Model(Protocol):
    """A class that can be read from JSON, like pydantic's models."""

    def model_validate_json(self, json_data: bytes) -> Any:
        """Returns an instance; raises if the JSON is not valid for it."""


Decode = Literal["json", "text"] | Model | Callable[[bytes], Any]
"""How a value is read: as JSON, as text, as a pydantic model, or by a function of bytes."""

Encode = Literal["json", "text"] | Callable[[Any], bytes]
"""How a value is written: as JSON (pydantic models too), as text, or by a function to bytes."""


def decoder(decode: Decode) -> Callable[[bytes], Any]:
    """Returns the function that decodes a value; ``TypeError`` if ``decode`` is not a codec."""
    if decode == "json":
        return _read_json
    if decode == "text":
        return bytes.decode
    if isinstance(decode, Model):
        return decode.model_validate_json
    if callable(decode):
        return decode
    raise TypeError(f'decode is "json", "text", a pydantic model or a function, not {decode!r}')


def encoder(encode: Encode) -> Callable[[Any], bytes]:
    """Returns the function that encodes a value; ``TypeError`` if ``encode`` is not a codec."""
    if encode == "json":
        return write_json
    if encode == "text":
        return str.encode
    if callable(encode):
        return encode
    raise TypeError(f'encode is "json", "text" or a function, not {encode!r}')


def _read_json(value: bytes) -> Any:
    return Datum(value).json()


class _Coded:
    """User code behind a codec, instantiated once per worker like any class of the user's."""

    def __init__(self, code: Any, decode: Decode | None, encode: Encode | None) -> None:
        self._code = code() if is_class(code) else code
        self._decode = None if decode is None else decoder(decode)
        self._encode = None if encode is None else encoder(encode)

    def open(self) -> Any:
        """Opens the user's object, if it can be opened."""
        return self._code.open() if hasattr(self._code, "open") else None

    def close(self) -> Any:
        """Closes the user's object, if it can be closed."""
        return self._code.close() if hasattr(self._code, "close") else None

    def read(self, datum: Datum) -> Any:
        """Returns the value that user code gets for a message."""
        return datum if self._decode is None else self._decode(datum.value)


class CodedMap(_Coded):
    """A map of values."""

    def __call__(self, datum: Datum) -> Any:
        """Returns the map's outputs for the message."""
        return self.write(self._code(self.read(datum)))

    def write(self, result: Any) -> Any:
        """Returns the result of user code, with messages in place of values."""
        if self._encode is None or result is None or isinstance(result, Message):
            return result
        if isinstance(result, list | tuple) or inspect.isgenerator(result):
            return [self._message(each) for each in result]
        return self._message(result)

    def _message(self, value: Any) -> Message:
        assert self._encode is not None
        return value if isinstance(value, Message) else Message(self._encode(value))


class CodedAsyncMap(CodedMap):
    """An ``async`` map of values; called on several messages concurrently."""

    async def __call__(self, datum: Datum) -> Any:
        """Returns the map's outputs for the message."""
        return self.write(await self._code(self.read(datum)))


class CodedSink(_Coded):
    """A sink of values."""

    def __call__(self, data: list[Datum]) -> Any:
        """Returns a response for each message, or an awaitable of them."""
        values, responses = [], []
        for datum in data:
            try:
                values.append(self.read(datum))
                responses.append(Response.ok(datum.id))
            except USER_ERRORS as error:
                responses.append(Response.failure(datum.id, describe_error(error)))
        result = self._code(values) if values else None
        if inspect.isawaitable(result):
            return self._later(result, responses)
        return _answer(result, responses)

    async def _later(self, result: Any, responses: list[Response]) -> list[Response]:
        return _answer(await result, responses)


def _answer(result: Any, responses: list[Response]) -> list[Response]:
    if result is not None:
        raise TypeError(
            "a sink with decode= returns nothing: when it returns, it has written everything, and "
            f"this one returned {type(result).__name__}"
        )
    return responses


def coded_map(code: Any, mode: str, decode: Decode | None, encode: Encode | None) -> Any:
    """Returns the map with its codec, if any; ``TypeError`` if it cannot have one."""
    if decode is None and encode is None:
        return code
    _check(code, mode == "unary", decode, encode)
    kind = CodedAsyncMap if _is_async(code) else CodedMap
    return partial(kind, code, decode, encode)


def coded_sink(code: Any, mode: str, decode: Decode | None) -> Any:
    """Returns the sink with its codec, if any; ``TypeError`` if it cannot have one."""
    if decode is None:
        return code
    _check(code, mode == "batch", decode, None)
    return partial(CodedSink, code, decode, None)


def uncoded(code: Any) -> Any:
    """Returns the user's own function or class, for display."""
    own = isinstance(code, partial) and code.func in (CodedMap, CodedAsyncMap, CodedSink)
    return code.args[0] if own else code


def _check(code: Any, fits: bool, decode: Decode | None, encode: Encode | None) -> None:
    if not callable(code) or not fits:
        raise TypeError(
            "decode and encode are for Python functions and classes, in the mode unary of a map "
            "and the mode batch of a sink"
        )
    if decode is not None:
        decoder(decode)
    if encode is not None:
        encoder(encode)


def _is_async(code: Any) -> bool:
    owner = code if inspect.isroutine(code) or inspect.isclass(code) else type(code)
    entry = owner.__call__ if inspect.isclass(owner) else owner
    return inspect.iscoroutinefunction(entry)
