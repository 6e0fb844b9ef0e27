package main

import (
	"context"
	"os"

	"github.com/numaproj/numaflow-go/pkg/sinker"
)

// sink answers for each message as its payload says, and records the ones it took.
func sink(_ context.Context, data <-chan sinker.Datum) sinker.Responses {
	responses := sinker.ResponsesBuilder()
	lines := []string{}
	for datum := range data {
		told := parse(datum.Value())
		lines = append(lines, os.Args[1]+" "+string(datum.Value()))
		if told.verb == "describe" {
			seen := sight{EventTime: datum.EventTime().UnixMilli(), Watermark: datum.Watermark().UnixMilli(),
				Headers: datum.Headers(), Keys: datum.Keys(), ID: datum.ID(),
				User: plain(datum.UserMetadata()), System: plain(datum.SystemMetadata())}
			lines = append(lines, "saw "+string(seen.text()))
		}
		responses = responses.Append(response(datum.ID(), told))
	}
	record(lines)
	return responses
}

// response is what a payload asks of the primary sink; the sinks beside it answer OK unless told to fail or nack.
func response(id string, told order) sinker.Response {
	trouble(told)
	primary := os.Args[1] == "sink"
	switch {
	case told.verb == "fail" && primary:
		return sinker.ResponseFailure(id, told.rest)
	case told.verb == "fallback" && primary:
		return sinker.ResponseFallback(id)
	case told.verb == "success" && primary:
		return sinker.ResponseOnSuccess(id, sinker.NewMessage([]byte(told.rest)))
	case told.verb == "serve" && primary:
		return sinker.ResponseServe(id, []byte(told.rest))
	case told.verb == "nack" && primary:
		return sinker.ResponseNack(id, nackOptions(told.rest))
	case told.verb == "wrong-id":
		return sinker.ResponseOK("wrong-" + id)
	}
	return sinker.ResponseOK(id)
}
