// Google's own server for tests of Pub/Sub clients, on a free port of this machine.
// It prints its address, and ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	server := pstest.NewServer()
	fmt.Println(server.Addr)
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = server.Close()
}
