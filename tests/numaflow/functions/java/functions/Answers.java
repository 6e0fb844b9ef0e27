package functions;

import io.numaproj.numaflow.sinker.Datum;
import io.numaproj.numaflow.sinker.DatumIterator;
import io.numaproj.numaflow.sinker.Response;
import io.numaproj.numaflow.sinker.ResponseList;
import io.numaproj.numaflow.sinker.Sinker;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** The sinks, which answer for each message as its payload says and record the ones they took. */
final class Answers extends Sinker {
    private final String kind;

    Answers(String kind) {
        this.kind = kind;
    }

    @Override
    public ResponseList processMessages(DatumIterator data) {
        var responses = ResponseList.newBuilder();
        List<String> lines = new ArrayList<>();
        for (Datum datum = next(data); datum != null; datum = next(data)) {
            Order order = Order.parse(datum.getValue());
            lines.add(kind + " " + new String(datum.getValue(), StandardCharsets.UTF_8));
            if (order.verb().equals("describe")) {
                lines.add("saw " + Order.sight(datum.getId(), datum.getKeys(), datum.getHeaders(),
                        datum.getEventTime(), datum.getWatermark()));
            }
            order.trouble();
            responses.addResponse(response(datum.getId(), order));
        }
        Files.record(lines);
        return responses.build();
    }

    private static Datum next(DatumIterator data) {
        try {
            return data.next();
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    /** The sink beside the primary one answers OK. */
    private Response response(String id, Order order) {
        boolean primary = kind.equals("sink");
        if (primary && order.verb().equals("fail")) {
            return Response.responseFailure(id, order.rest());
        }
        if (primary && order.verb().equals("fallback")) {
            return Response.responseFallback(id);
        }
        return Response.responseOK(order.verb().equals("wrong-id") ? "wrong-" + id : id);
    }
}
