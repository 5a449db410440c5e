// Package work is the service tidegate.example.Work, written by hand: its messages are raw bytes, so that no
// compiler of protobuf is needed. Do does its work and answers what it was sent. It is the service of the Rust
// example tonic_work: each calls the other.
package work

import (
	"context"
	"errors"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Method is the name of Do, as callers invoke it.
const Method = "/tidegate.example.Work/Do"

// Raw is a codec whose messages are their bytes, as *[]byte.
type Raw struct{}

var _ encoding.Codec = Raw{}

// Name is that of gRPC's default, so that content types are the usual ones.
func (Raw) Name() string { return "proto" }

// Marshal returns the message's bytes.
func (Raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

// Unmarshal copies the bytes, which the caller reuses.
func (Raw) Unmarshal(bytes []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), bytes...)
	return nil
}

// sink keeps the compiler from leaving the work out.
var sink atomic.Uint64

// Compute does rounds of one to two nanoseconds: work in rounds of the processor, not in time, so that a core that is
// taken away does not shorten it.
func Compute(rounds uint64) {
	x := uint64(0x9e3779b97f4a7c15)
	for round := range rounds {
		x = (bits.RotateLeft64(x, 7) * 5) ^ round
	}
	sink.Add(x)
}

// Rounds returns the rounds that take as long on this processor, by the fastest of several tries.
func Rounds(of time.Duration) uint64 {
	const try = 2_000_000
	fastest := time.Hour
	for range 20 {
		start := time.Now()
		Compute(try)
		fastest = min(fastest, time.Since(start))
	}
	return uint64(of) * try / uint64(max(fastest, 1))
}

// Shape is what a handler does with its rounds of work.
type Shape func(ctx context.Context, rounds uint64) error

// ReadShape reads compute, wait:MS, between:MS, lock or pool:PLACESxMS.
func ReadShape(text string) (Shape, error) {
	name, of, _ := strings.Cut(text, ":")
	switch name {
	case "compute":
		return func(_ context.Context, rounds uint64) error { Compute(rounds); return nil }, nil
	case "lock":
		var lock sync.Mutex
		return func(_ context.Context, rounds uint64) error {
			lock.Lock()
			defer lock.Unlock()
			Compute(rounds)
			return nil
		}, nil
	case "wait", "between":
		ms, err := strconv.ParseUint(of, 10, 20)
		if err != nil {
			break
		}
		before := uint64(0)
		if name == "between" {
			before = 1
		}
		return func(ctx context.Context, rounds uint64) error {
			Compute(before * rounds / 2)
			err := wait(ctx, time.Duration(ms)*time.Millisecond)
			Compute(rounds - before*rounds/2)
			return err
		}, nil
	case "pool":
		count, each, _ := strings.Cut(of, "x")
		places, err := strconv.ParseUint(count, 10, 20)
		ms, err2 := strconv.ParseUint(each, 10, 20)
		if err != nil || err2 != nil {
			break
		}
		pool := make(chan struct{}, places)
		return func(ctx context.Context, rounds uint64) error {
			select {
			case pool <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			err := wait(ctx, time.Duration(ms)*time.Millisecond)
			<-pool
			Compute(rounds)
			return err
		}, nil
	}
	return nil, errors.New("a shape is one of compute, wait:MS, between:MS, lock, pool:PLACESxMS, not " + text)
}

// wait stands for a database or another service.
func wait(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Service describes the service with handlers that do as many rounds of work in that shape.
func Service(rounds uint64, shape Shape) *grpc.ServiceDesc {
	do := func(_ any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
		request := new([]byte)
		if err := decode(request); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, request any) (any, error) {
			if err := shape(ctx, rounds); err != nil {
				return nil, err
			}
			return request, nil
		}
		if around == nil {
			return handler(ctx, request)
		}
		return around(ctx, request, &grpc.UnaryServerInfo{FullMethod: Method}, handler)
	}
	return &grpc.ServiceDesc{
		ServiceName: "tidegate.example.Work",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Do", Handler: do}},
	}
}
