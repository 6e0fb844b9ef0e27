"""Handlers of maps, transformers and sinks on pynumaflow, which follow the orders in payloads."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any

from behaviour import (
    Order,
    describe,
    event_time,
    kind,
    outputs,
    parse,
    record,
    trouble,
    with_metadata,
)
from pynumaflow import batchmapper, mapper, mapstreamer, sinker, sourcetransformer


def map_one(keys: list[str], datum: mapper.Datum) -> mapper.Messages:
    order = parse(datum.value)
    messages = mapper.Messages()
    for output in outputs(order, keys, datum):
        metadata = with_metadata(order, datum.user_metadata)
        messages.append(mapper.Message(output.value, output.keys, output.tags, metadata))
    return messages


async def map_one_async(keys: list[str], datum: mapper.Datum) -> mapper.Messages:
    return map_one(keys, datum)


async def map_batch(data: AsyncIterable[batchmapper.Datum]) -> batchmapper.BatchResponses:
    responses = batchmapper.BatchResponses()
    async for datum in data:
        order = parse(datum.value)
        wrong = "wrong-" if order.verb == "wrong-id" else ""
        response = batchmapper.BatchResponse.from_id(wrong + datum.id)
        for output in outputs(order, datum.keys, datum):
            response.append(batchmapper.Message(output.value, output.keys, output.tags))
        responses.append(response)
    return responses


async def map_stream(keys: list[str], datum: mapstreamer.Datum) -> AsyncIterator[Any]:
    for output in outputs(parse(datum.value), keys, datum):
        yield mapstreamer.Message(output.value, output.keys, output.tags)


def transform(keys: list[str], datum: sourcetransformer.Datum) -> sourcetransformer.Messages:
    order = parse(datum.value)
    messages = sourcetransformer.Messages()
    for output in outputs(order, keys, datum):
        metadata = with_metadata(order, datum.user_metadata)
        moment = event_time(order, datum)
        messages.append(
            sourcetransformer.Message(output.value, moment, output.keys, output.tags, metadata)
        )
    return messages


async def transform_async(
    keys: list[str], datum: sourcetransformer.Datum
) -> sourcetransformer.Messages:
    return transform(keys, datum)


def sink(data: Iterator[sinker.Datum]) -> sinker.Responses:
    return sinker.Responses(*[_answer(datum) for datum in data])


async def sink_async(data: AsyncIterable[sinker.Datum]) -> sinker.Responses:
    return sinker.Responses(*[_answer(datum) async for datum in data])


def _answer(datum: sinker.Datum) -> sinker.Response:
    order = parse(datum.value)
    record([f"{kind()} {datum.value.decode()}"])
    if order.verb == "describe":
        record([f"saw {describe(datum.keys, datum).decode()}"])
    trouble(order)
    return _response(datum.id, order)


def _response(identifier: str, order: Order) -> sinker.Response:
    primary = kind() == "sink"
    match order.verb:
        case "fail" if primary:
            return sinker.Response.as_failure(identifier, order.rest)
        case "fallback" if primary:
            return sinker.Response.as_fallback(identifier)
        case "success" if primary:
            message = sinker.Message(order.rest.encode())
            return sinker.Response.as_on_success(identifier, message)
        case "wrong-id":
            return sinker.Response.as_success(f"wrong-{identifier}")
    return sinker.Response.as_success(identifier)
