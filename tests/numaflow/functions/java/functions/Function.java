package functions;

import java.nio.file.Path;

/**
 * Serves one of Numaflow's functions, chosen by the first argument, on the public Java SDK.
 *
 * <p>What it does with a message is written in the message: see Order and the README beside.
 */
public final class Function {
    static String kind;

    private Function() {}

    public static void main(String[] arguments) throws Exception {
        kind = arguments[0];
        Path folder = Path.of(arguments.length > 1 ? arguments[1] : "/var/run/numaflow");
        switch (kind) {
            case "map" -> serveMap(folder);
            case "batch-map" -> serveBatchMap(folder);
            case "stream-map" -> serveStreamMap(folder);
            case "transformer" -> serveTransformer(folder);
            case "sink" -> serveSink(folder, kind, "");
            case "fallback-sink" -> serveSink(folder, kind, "fb-");
            case "source" -> serveSource(folder);
            default -> throw new IllegalArgumentException("no function of kind " + kind);
        }
    }

    private static String at(Path folder, String name) {
        return folder.resolve(name).toString();
    }

    private static void serveMap(Path folder) throws Exception {
        var config = io.numaproj.numaflow.mapper.GRPCConfig.newBuilder()
                .socketPath(at(folder, "map.sock"))
                .infoFilePath(at(folder, "mapper-server-info")).build();
        var server = new io.numaproj.numaflow.mapper.Server(new Maps.One(), config);
        server.start();
        server.awaitTermination();
    }

    private static void serveBatchMap(Path folder) throws Exception {
        var config = io.numaproj.numaflow.batchmapper.GRPCConfig.newBuilder()
                .socketPath(at(folder, "batchmap.sock"))
                .infoFilePath(at(folder, "mapper-server-info")).build();
        var server = new io.numaproj.numaflow.batchmapper.Server(new Maps.Batch(), config);
        server.start();
        server.awaitTermination();
    }

    private static void serveStreamMap(Path folder) throws Exception {
        var config = io.numaproj.numaflow.mapstreamer.GRPCConfig.newBuilder()
                .socketPath(at(folder, "mapstream.sock"))
                .infoFilePath(at(folder, "mapper-server-info")).build();
        var server = new io.numaproj.numaflow.mapstreamer.Server(new Maps.Stream(), config);
        server.start();
        server.awaitTermination();
    }

    private static void serveTransformer(Path folder) throws Exception {
        var config = io.numaproj.numaflow.sourcetransformer.GRPCConfig.newBuilder()
                .socketPath(at(folder, "sourcetransform.sock"))
                .infoFilePath(at(folder, "sourcetransformer-server-info")).build();
        var server = new io.numaproj.numaflow.sourcetransformer.Server(new Maps.Transformer(), config);
        server.start();
        server.awaitTermination();
    }

    private static void serveSink(Path folder, String kind, String prefix) throws Exception {
        var config = io.numaproj.numaflow.sinker.GRPCConfig.newBuilder()
                .socketPath(at(folder, prefix + "sink.sock"))
                .infoFilePath(at(folder, prefix + "sinker-server-info")).build();
        var server = new io.numaproj.numaflow.sinker.Server(new Answers(kind), config);
        server.start();
        server.awaitTermination();
    }

    private static void serveSource(Path folder) throws Exception {
        var config = io.numaproj.numaflow.sourcer.GRPCConfig.newBuilder()
                .socketPath(at(folder, "source.sock"))
                .infoFilePath(at(folder, "sourcer-server-info")).build();
        var server = new io.numaproj.numaflow.sourcer.Server(new Lines(), config);
        server.start();
        server.awaitTermination();
    }
}
