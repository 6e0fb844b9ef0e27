package functions;

import java.time.Instant;

/** Maps and the transformer, which follow the orders in payloads. */
final class Maps {
    private Maps() {}

    static final class One extends io.numaproj.numaflow.mapper.Mapper {
        @Override
        public io.numaproj.numaflow.mapper.MessageList processMessage(
                String[] keys, io.numaproj.numaflow.mapper.Datum datum) {
            var messages = io.numaproj.numaflow.mapper.MessageList.newBuilder();
            String sight = Order.sight(
                    null, keys, datum.getHeaders(), datum.getEventTime(), datum.getWatermark());
            for (var out : Order.parse(datum.getValue()).outputs(datum.getValue(), keys, sight)) {
                messages.addMessage(
                        new io.numaproj.numaflow.mapper.Message(out.value(), out.keys(), out.tags()));
            }
            return messages.build();
        }
    }

    static final class Batch extends io.numaproj.numaflow.batchmapper.BatchMapper {
        @Override
        public io.numaproj.numaflow.batchmapper.BatchResponses processMessage(
                io.numaproj.numaflow.batchmapper.DatumIterator data) {
            var responses = new io.numaproj.numaflow.batchmapper.BatchResponses();
            for (var datum = next(data); datum != null; datum = next(data)) {
                Order order = Order.parse(datum.getValue());
                String sight = Order.sight(datum.getId(), datum.getKeys(), datum.getHeaders(),
                        datum.getEventTime(), datum.getWatermark());
                String wrong = order.verb().equals("wrong-id") ? "wrong-" : "";
                var response = new io.numaproj.numaflow.batchmapper.BatchResponse(wrong + datum.getId());
                for (var out : order.outputs(datum.getValue(), datum.getKeys(), sight)) {
                    response.append(new io.numaproj.numaflow.batchmapper.Message(
                            out.value(), out.keys(), out.tags()));
                }
                responses.append(response);
            }
            return responses;
        }

        private static io.numaproj.numaflow.batchmapper.Datum next(
                io.numaproj.numaflow.batchmapper.DatumIterator data) {
            try {
                return data.next();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }
    }

    static final class Stream extends io.numaproj.numaflow.mapstreamer.MapStreamer {
        @Override
        public void processMessage(
                String[] keys,
                io.numaproj.numaflow.mapstreamer.Datum datum,
                io.numaproj.numaflow.mapstreamer.OutputObserver messages) {
            String sight = Order.sight(
                    null, keys, datum.getHeaders(), datum.getEventTime(), datum.getWatermark());
            for (var out : Order.parse(datum.getValue()).outputs(datum.getValue(), keys, sight)) {
                messages.send(
                        new io.numaproj.numaflow.mapstreamer.Message(out.value(), out.keys(), out.tags()));
            }
        }
    }

    static final class Transformer extends io.numaproj.numaflow.sourcetransformer.SourceTransformer {
        @Override
        public io.numaproj.numaflow.sourcetransformer.MessageList processMessage(
                String[] keys, io.numaproj.numaflow.sourcetransformer.Datum datum) {
            var messages = io.numaproj.numaflow.sourcetransformer.MessageList.newBuilder();
            Order order = Order.parse(datum.getValue());
            String sight = Order.sight(
                    null, keys, datum.getHeaders(), datum.getEventTime(), datum.getWatermark());
            Instant eventTime = order.verb().equals("time")
                    ? Instant.ofEpochMilli(Long.parseLong(order.rest()))
                    : datum.getEventTime();
            for (var out : order.outputs(datum.getValue(), keys, sight)) {
                messages.addMessage(new io.numaproj.numaflow.sourcetransformer.Message(
                        out.value(), eventTime, out.keys(), out.tags()));
            }
            return messages.build();
        }
    }
}
