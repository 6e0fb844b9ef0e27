// Serves one of Numaflow's functions, chosen by the first argument, on the public Go SDK.
//
// What it does with a message is written in the message: see behaviour.go and ../README.md.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	numaflow "github.com/numaproj/numaflow-go/pkg"
	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/mapstreamer"
	"github.com/numaproj/numaflow-go/pkg/sinker"
	"github.com/numaproj/numaflow-go/pkg/sourcer"
	"github.com/numaproj/numaflow-go/pkg/sourcetransformer"
)

// Folder of sockets and server-info files: the second argument, else where Numaflow has them.
func folder() string {
	if len(os.Args) > 2 {
		return os.Args[2]
	}
	return "/var/run/numaflow"
}

func at(name string) string { return filepath.Join(folder(), name) }

func server(kind string) (numaflow.Server, error) {
	switch kind {
	case "map", "cat":
		function := map[string]mapper.MapperFunc{"map": mapOne, "cat": cat}[kind]
		return mapper.NewServer(function,
			mapper.WithSockAddr(at("map.sock")), mapper.WithServerInfoFilePath(at("mapper-server-info"))), nil
	case "batch-map", "batch-cat":
		function := map[string]batchmapper.BatchMapperFunc{"batch-map": mapBatch, "batch-cat": catBatch}[kind]
		return batchmapper.NewServer(function,
			batchmapper.WithSockAddr(at("batchmap.sock")),
			batchmapper.WithServerInfoFilePath(at("mapper-server-info"))), nil
	case "stream-map":
		return mapstreamer.NewServer(mapstreamer.MapStreamerFunc(mapStream),
			mapstreamer.WithSockAddr(at("mapstream.sock")),
			mapstreamer.WithServerInfoFilePath(at("mapper-server-info"))), nil
	case "transformer":
		return sourcetransformer.NewServer(sourcetransformer.SourceTransformFunc(transform),
			sourcetransformer.WithSockAddr(at("sourcetransform.sock")),
			sourcetransformer.WithServerInfoFilePath(at("sourcetransformer-server-info"))), nil
	case "sink", "fallback-sink", "on-success-sink":
		prefix := map[string]string{"sink": "", "fallback-sink": "fb-", "on-success-sink": "ons-"}[kind]
		return sinker.NewServer(sinker.SinkerFunc(sink),
			sinker.WithSockAddr(at(prefix+"sink.sock")),
			sinker.WithServerInfoFilePath(at(prefix+"sinker-server-info"))), nil
	case "source":
		return sourcer.NewServer(newSource(),
			sourcer.WithSockAddr(at("source.sock")), sourcer.WithServerInfoFilePath(at("sourcer-server-info"))), nil
	}
	return nil, fmt.Errorf("no function of kind %q", kind)
}

func main() {
	function, err := server(os.Args[1])
	if err == nil {
		err = function.Start(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
}
