package functions;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

/** The payload of a message read as a verb and its arguments; one without a known verb is passed on. */
record Order(String verb, String rest) {
    private static final Set<String> SEEN = ConcurrentHashMap.newKeySet();

    /** A message that any kind of map gives. */
    record Output(byte[] value, String[] keys, String[] tags) {
        static Output tagged(String value, String tag) {
            return new Output(bytes(value), new String[0], new String[] {tag});
        }
    }

    static Order parse(byte[] payload) {
        String text = addressed(new String(payload, StandardCharsets.UTF_8));
        if (text.startsWith("once ")) {
            text = text.substring("once ".length());
            if (!SEEN.add(text)) {
                return new Order("pass", "");
            }
        }
        String[] parts = text.split(" ", 2);
        return new Order(parts[0], parts.length > 1 ? parts[1] : "");
    }

    /** The part of "@map drop;@sink fail no" that is for this kind of function. */
    private static String addressed(String payload) {
        if (!payload.startsWith("@")) {
            return payload;
        }
        String mine = "@" + Function.kind + " ";
        for (String part : payload.split(";")) {
            if (part.startsWith(mine)) {
                return part.substring(mine.length());
            }
        }
        return "pass";
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Throws, sleeps, ends the process or never returns, if the order says so. */
    void trouble() {
        try {
            switch (verb) {
                case "panic" -> throw new IllegalStateException(rest);
                case "exit" -> Runtime.getRuntime().halt(3);
                case "hang" -> Thread.sleep(Long.MAX_VALUE);
                case "sleep" -> Thread.sleep(Long.parseLong(rest));
                default -> { }
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    List<Output> outputs(byte[] value, String[] keys, String sight) {
        trouble();
        String[] none = new String[0];
        return switch (verb) {
            case "none" -> List.of();
            case "drop" -> List.of(Output.tagged("", "U+005C__DROP__"));
            case "fail" -> List.of(Output.tagged(rest, "U+005C__FAIL__"));
            case "nack" -> List.of(Output.tagged("", "U+005C__NACK__"));
            case "tags" -> List.of(new Output(value, keys, rest.split(",")));
            case "keys" -> List.of(new Output(value, rest.split(","), none));
            case "describe" -> List.of(new Output(bytes(sight), keys, none));
            case "flat" -> Arrays.stream(rest.split(","))
                    .map(part -> new Output(bytes(part), keys, none)).collect(Collectors.toList());
            default -> List.of(new Output(value, keys, none));
        };
    }

    /** What the function was told of a message, as JSON with sorted names; payloads of tests need no escapes. */
    static String sight(
            String id, String[] keys, Map<String, String> headers, Instant eventTime, Instant watermark) {
        List<String> pairs = new ArrayList<>();
        new TreeMap<>(headers).forEach((name, value) -> pairs.add(quoted(name) + ":" + quoted(value)));
        return "{\"event_time\":" + eventTime.toEpochMilli()
                + ",\"headers\":{" + String.join(",", pairs) + "}"
                + (id == null ? "" : ",\"id\":" + quoted(id))
                + ",\"keys\":[" + Arrays.stream(keys).map(Order::quoted).collect(Collectors.joining(","))
                + "],\"watermark\":" + watermark.toEpochMilli() + "}";
    }

    private static String quoted(String text) {
        return '"' + text + '"';
    }
}
