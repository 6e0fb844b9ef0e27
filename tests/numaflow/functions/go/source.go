package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// firstTime of the messages: 2023-11-14 22:13:20 UTC, a second for each message.
const firstEventTime = 1_700_000_000

// source gives the lines of a file, and gives again what was nacked or not acknowledged when it ended.
type source struct {
	lock     sync.Mutex
	payloads []string
	waiting  []int
	acked    int
}

func newSource() *source {
	given := &source{payloads: lines(os.Getenv("FUNCTION_PAYLOADS"))}
	settled := map[int]bool{}
	for _, line := range lines(os.Getenv("FUNCTION_RECORD")) {
		if number, acked := strings.CutPrefix(line, "ack "); acked {
			index, _ := strconv.Atoi(number)
			settled[index] = true
		}
	}
	given.acked = len(settled)
	for index := range given.payloads {
		if !settled[index] {
			given.waiting = append(given.waiting, index)
		}
	}
	return given
}

func lines(path string) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	all := []string{}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		all = append(all, scanner.Text())
	}
	return all
}

func (s *source) take(most uint64) []int {
	s.lock.Lock()
	defer s.lock.Unlock()
	taken := s.waiting[:min(int(most), len(s.waiting))]
	s.waiting = s.waiting[len(taken):]
	return taken
}

// Read gives what waits; with nothing to give it lets the request's time pass.
func (s *source) Read(ctx context.Context, request sourcer.ReadRequest, messages chan<- sourcer.Message) {
	taken := s.take(request.Count())
	if len(taken) == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(request.TimeOut()):
		}
		return
	}
	for _, index := range taken {
		offset := sourcer.NewOffsetWithDefaultPartitionId([]byte(strconv.Itoa(index)))
		metadata := sourcer.NewUserMetadata()
		metadata.AddKV("source", "index", []byte(strconv.Itoa(index)))
		messages <- sourcer.NewMessage([]byte(s.payloads[index]), offset, time.Unix(firstEventTime+int64(index), 0)).
			WithKeys([]string{fmt.Sprintf("key-%d", index)}).
			WithHeaders(map[string]string{"index": strconv.Itoa(index)}).
			WithUserMetadata(metadata)
	}
}

func (s *source) Ack(_ context.Context, request sourcer.AckRequest) {
	s.lock.Lock()
	defer s.lock.Unlock()
	told := []string{}
	for _, offset := range request.Offsets() {
		told = append(told, "ack "+string(offset.Value()))
	}
	s.acked += len(told)
	record(told)
}

func (s *source) Nack(_ context.Context, request sourcer.NackRequest) {
	s.lock.Lock()
	defer s.lock.Unlock()
	told := []string{}
	again := []int{}
	for _, nacked := range request.Offsets() {
		told = append(told, "nack "+string(nacked.Offset.Value())+nackText(nacked.NackOptions))
		again = append(again, int(number(string(nacked.Offset.Value()))))
	}
	s.waiting = append(again, s.waiting...)
	record(told)
}

func (s *source) Pending(context.Context) int64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	return int64(len(s.payloads) - s.acked)
}

func (s *source) ActivePartitions(context.Context) []int32 { return sourcer.DefaultPartitions() }

func (s *source) TotalPartitions(context.Context) *int32 { return nil }
