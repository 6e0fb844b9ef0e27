package functions;

import io.numaproj.numaflow.sourcer.AckRequest;
import io.numaproj.numaflow.sourcer.Message;
import io.numaproj.numaflow.sourcer.Offset;
import io.numaproj.numaflow.sourcer.OutputObserver;
import io.numaproj.numaflow.sourcer.ReadRequest;
import io.numaproj.numaflow.sourcer.Sourcer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A source that gives the lines of a file, and again what was not acknowledged when it ended. */
final class Lines extends Sourcer {
    private static final long FIRST_EVENT_TIME = 1_700_000_000L;

    private final List<String> payloads = Files.recorded("FUNCTION_PAYLOADS");
    private final Set<Integer> acked = new HashSet<>();
    private final Deque<Integer> waiting = new ArrayDeque<>();

    Lines() {
        for (String line : Files.recorded("FUNCTION_RECORD")) {
            if (line.startsWith("ack ")) {
                acked.add(Integer.parseInt(line.substring("ack ".length())));
            }
        }
        for (int index = 0; index < payloads.size(); index++) {
            if (!acked.contains(index)) {
                waiting.add(index);
            }
        }
    }

    @Override
    public void read(ReadRequest request, OutputObserver messages) {
        List<Integer> taken = take(request.getCount());
        for (int index : taken) {
            messages.send(message(index));
        }
        if (taken.isEmpty()) {
            try {
                Thread.sleep(request.getTimeout().toMillis());
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private synchronized List<Integer> take(long most) {
        List<Integer> taken = new ArrayList<>();
        while (taken.size() < most && !waiting.isEmpty()) {
            taken.add(waiting.removeFirst());
        }
        return taken;
    }

    private Message message(int index) {
        String number = Integer.toString(index);
        return new Message(
                Order.bytes(payloads.get(index)),
                new Offset(Order.bytes(number)),
                Instant.ofEpochSecond(FIRST_EVENT_TIME + index),
                new String[] {"key-" + number},
                Map.of("index", number));
    }

    @Override
    public synchronized void ack(AckRequest request) {
        List<String> lines = new ArrayList<>();
        for (Offset offset : request.getOffsets()) {
            String number = new String(offset.getValue(), StandardCharsets.UTF_8);
            acked.add(Integer.parseInt(number));
            lines.add("ack " + number);
        }
        Files.record(lines);
    }

    @Override
    public synchronized long getPending() {
        return payloads.size() - acked.size();
    }

    @Override
    public List<Integer> getPartitions() {
        return Sourcer.defaultPartitions();
    }
}
