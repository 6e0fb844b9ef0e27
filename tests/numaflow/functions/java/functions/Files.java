package functions;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;

/** The files that tests write and read. */
final class Files {
    private Files() {}

    /** Appends lines to the file that FUNCTION_RECORD names; without one nothing happens. */
    static void record(List<String> lines) {
        String path = System.getenv("FUNCTION_RECORD");
        if (path == null || lines.isEmpty()) {
            return;
        }
        try {
            java.nio.file.Files.write(
                    Path.of(path), lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The lines of the file that the variable names; none without it. */
    static List<String> recorded(String variable) {
        String path = System.getenv(variable);
        if (path == null || !java.nio.file.Files.exists(Path.of(path))) {
            return List.of();
        }
        try {
            return java.nio.file.Files.readAllLines(Path.of(path));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
