package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/mapper"
)

const (
	dropTag = "U+005C__DROP__"
	failTag = "U+005C__FAIL__"
	nackTag = "U+005C__NACK__"
)

// order is the payload read as a verb and its arguments; a payload without a known verb is passed on.
type order struct {
	verb string
	rest string
}

var (
	seen     = map[string]bool{}
	seenLock sync.Mutex
)

func parse(payload []byte) order {
	text, first := strings.CutPrefix(addressed(string(payload)), "once ")
	if first && !firstTime(text) {
		return order{verb: "pass"}
	}
	verb, rest, _ := strings.Cut(text, " ")
	return order{verb: verb, rest: rest}
}

// addressed is the part of "@map drop;@sink fail no" that is for this kind of function.
func addressed(payload string) string {
	if !strings.HasPrefix(payload, "@") {
		return payload
	}
	for _, part := range strings.Split(payload, ";") {
		if text, mine := strings.CutPrefix(part, "@"+os.Args[1]+" "); mine {
			return text
		}
	}
	return "pass"
}

func firstTime(text string) bool {
	seenLock.Lock()
	defer seenLock.Unlock()
	before := seen[text]
	seen[text] = true
	return !before
}

// pause is what every message takes, if FUNCTION_PAUSE says so in milliseconds.
var pause = func() time.Duration {
	millis, _ := strconv.Atoi(os.Getenv("FUNCTION_PAUSE"))
	return time.Duration(millis) * time.Millisecond
}()

// trouble does what keeps a function from answering: it panics, sleeps or never returns.
func trouble(told order) {
	time.Sleep(pause)
	switch told.verb {
	case "panic":
		panic(told.rest)
	case "exit":
		os.Exit(3)
	case "hang":
		select {}
	case "sleep":
		time.Sleep(time.Duration(number(told.rest)) * time.Millisecond)
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("no number: %q", text))
	}
	return value
}

// nackOptions reads "delay=5 max=2 reason=busy"; what is left out stays unset.
func nackOptions(rest string) *mapper.NackOptions {
	if rest == "" {
		return nil
	}
	options := &mapper.NackOptions{}
	for _, field := range strings.Fields(rest) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "delay":
			delay := uint64(number(value))
			options.Delay = &delay
		case "max":
			most := uint32(number(value))
			options.MaxDeliveries = &most
		case "reason":
			options.Reason = &value
		}
	}
	return options
}

// nackText writes options as nackOptions reads them.
func nackText(options *mapper.NackOptions) string {
	if options == nil {
		return ""
	}
	text := ""
	if options.Delay != nil {
		text += fmt.Sprintf(" delay=%d", *options.Delay)
	}
	if options.MaxDeliveries != nil {
		text += fmt.Sprintf(" max=%d", *options.MaxDeliveries)
	}
	if options.Reason != nil {
		text += " reason=" + *options.Reason
	}
	return text
}

// groups is the part of user and system metadata that is read.
type groups interface {
	Groups() []string
	Keys(group string) []string
	Value(group, key string) []byte
}

func plain(metadata groups) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, group := range metadata.Groups() {
		all[group] = map[string]string{}
		for _, key := range metadata.Keys(group) {
			all[group][key] = string(metadata.Value(group, key))
		}
	}
	return all
}

// sight is what a function was told of a message, for the verb "describe".
type sight struct {
	EventTime int64                        `json:"event_time"`
	Headers   map[string]string            `json:"headers"`
	ID        string                       `json:"id,omitempty"`
	Keys      []string                     `json:"keys"`
	System    map[string]map[string]string `json:"system,omitempty"`
	User      map[string]map[string]string `json:"user,omitempty"`
	Watermark int64                        `json:"watermark"`
}

func (seen sight) text() []byte {
	text, err := json.Marshal(seen)
	if err != nil {
		panic(err)
	}
	return text
}

// record appends lines to the file that tests read; without one it does nothing.
func record(lines []string) {
	path := os.Getenv("FUNCTION_RECORD")
	if path == "" || len(lines) == 0 {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
		panic(err)
	}
}
