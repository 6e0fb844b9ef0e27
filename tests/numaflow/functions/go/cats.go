package main

import (
	"context"

	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
)

// cat passes every message on without looking at it: what is measured is the way there and back.
func cat(_ context.Context, keys []string, datum mapper.Datum) mapper.Messages {
	return mapper.MessagesBuilder().Append(mapper.NewMessage(datum.Value()).WithKeys(keys))
}

func catBatch(_ context.Context, data <-chan batchmapper.Datum) batchmapper.BatchResponses {
	responses := batchmapper.BatchResponsesBuilder()
	for datum := range data {
		message := batchmapper.NewMessage(datum.Value()).WithKeys(datum.Keys())
		responses = responses.Append(batchmapper.NewBatchResponse(datum.Id()).Append(message))
	}
	return responses
}
