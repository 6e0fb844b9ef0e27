package main

import (
	"context"
	"strings"
	"time"

	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/mapstreamer"
	"github.com/numaproj/numaflow-go/pkg/sourcetransformer"
)

// output is a message that any kind of map gives.
type output struct {
	value []byte
	keys  []string
	tags  []string
	nack  *mapper.NackOptions
}

func outputs(told order, keys []string, payload []byte, see func() sight) []output {
	trouble(told)
	same := output{value: payload, keys: keys}
	switch told.verb {
	case "none":
		return nil
	case "drop":
		return []output{{tags: []string{dropTag}}}
	case "fail":
		return []output{{value: []byte(told.rest), tags: []string{failTag}}}
	case "nack":
		return []output{{tags: []string{nackTag}, nack: nackOptions(told.rest)}}
	case "tags":
		same.tags = strings.Split(told.rest, ",")
	case "keys":
		same.keys = strings.Split(told.rest, ",")
	case "describe":
		same.value = see().text()
	case "flat":
		parts := []output{}
		for _, part := range strings.Split(told.rest, ",") {
			parts = append(parts, output{value: []byte(part), keys: keys})
		}
		return parts
	}
	return []output{same}
}

// withMetadata adds what "meta GROUP KEY VALUE" says to the metadata that came.
func withMetadata(told order, metadata *mapper.UserMetadata) *mapper.UserMetadata {
	if told.verb == "meta" {
		words := strings.Fields(told.rest)
		metadata.AddKV(words[0], words[1], []byte(words[2]))
	}
	return metadata
}

func mapOne(_ context.Context, keys []string, datum mapper.Datum) mapper.Messages {
	see := func() sight {
		return sight{EventTime: datum.EventTime().UnixMilli(), Watermark: datum.Watermark().UnixMilli(),
			Headers: datum.Headers(), Keys: keys,
			User: plain(datum.UserMetadata()), System: plain(datum.SystemMetadata())}
	}
	told := parse(datum.Value())
	messages := mapper.MessagesBuilder()
	for _, out := range outputs(told, keys, datum.Value(), see) {
		if out.nack != nil {
			messages = messages.Append(mapper.MessageToNack(out.nack))
			continue
		}
		message := mapper.NewMessage(out.value).WithKeys(out.keys).WithTags(out.tags)
		messages = messages.Append(message.WithUserMetadata(withMetadata(told, datum.UserMetadata())))
	}
	return messages
}

func mapBatch(_ context.Context, data <-chan batchmapper.Datum) batchmapper.BatchResponses {
	responses := batchmapper.BatchResponsesBuilder()
	for datum := range data {
		see := func() sight {
			return sight{EventTime: datum.EventTime().UnixMilli(), Watermark: datum.Watermark().UnixMilli(),
				Headers: datum.Headers(), Keys: datum.Keys(), ID: datum.Id()}
		}
		told, id := parse(datum.Value()), datum.Id()
		if told.verb == "wrong-id" {
			id = "wrong-" + id
		}
		response := batchmapper.NewBatchResponse(id)
		for _, out := range outputs(told, datum.Keys(), datum.Value(), see) {
			if out.nack != nil {
				response = response.Append(batchmapper.MessageToNack(out.nack))
				continue
			}
			response = response.Append(batchmapper.NewMessage(out.value).WithKeys(out.keys).WithTags(out.tags))
		}
		responses = responses.Append(response)
	}
	return responses
}

// mapStream closes its channel only when all is well: closed in a panic, it would say that all was said.
// It stops when another call has broken, or the server would wait for it for ever.
func mapStream(ctx context.Context, keys []string, datum mapstreamer.Datum, messages chan<- mapstreamer.Message) {
	see := func() sight {
		return sight{EventTime: datum.EventTime().UnixMilli(), Watermark: datum.Watermark().UnixMilli(),
			Headers: datum.Headers(), Keys: keys}
	}
	for _, out := range outputs(parse(datum.Value()), keys, datum.Value(), see) {
		message := mapstreamer.NewMessage(out.value).WithKeys(out.keys).WithTags(out.tags)
		if out.nack != nil {
			message = mapstreamer.MessageToNack(out.nack)
		}
		select {
		case messages <- message:
		case <-ctx.Done():
			return
		}
	}
	close(messages)
}

func transform(_ context.Context, keys []string, datum sourcetransformer.Datum) sourcetransformer.Messages {
	see := func() sight {
		return sight{EventTime: datum.EventTime().UnixMilli(), Watermark: datum.Watermark().UnixMilli(),
			Headers: datum.Headers(), Keys: keys,
			User: plain(datum.UserMetadata()), System: plain(datum.SystemMetadata())}
	}
	told, eventTime := parse(datum.Value()), datum.EventTime()
	if told.verb == "time" {
		eventTime = time.UnixMilli(number(told.rest))
	}
	messages := sourcetransformer.MessagesBuilder()
	for _, out := range outputs(told, keys, datum.Value(), see) {
		if out.nack != nil {
			messages = messages.Append(sourcetransformer.MessageToNack(eventTime, out.nack))
			continue
		}
		message := sourcetransformer.NewMessage(out.value, eventTime).WithKeys(out.keys).WithTags(out.tags)
		messages = messages.Append(message.WithUserMetadata(withMetadata(told, datum.UserMetadata())))
	}
	return messages
}
