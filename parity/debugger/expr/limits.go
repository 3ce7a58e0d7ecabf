package expr

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/units"
)

// Limits of an evaluation, and of values other than tensors. Each step of Starlark is short with
// such values, so that the evaluation can be stopped after it.
const (
	maxSource  = 64 << 10   // bytes
	maxNesting = 100        // brackets in the source, and values in values
	maxHeap    = 1e9        // bytes that the heap may grow by
	maxList    = 10_000_000 // elements of lists, tuples, dicts, sets and ranges
	maxSorted  = 1_000_000  // elements of a list that is sorted
	maxKeys    = 1_000_000  // elements of a set or dict that a step makes
	maxText    = 16e6       // bytes of a string
	maxBits    = 1 << 17    // of a whole number
	maxTuple   = 10_000     // values in a tuple and the tuples in it, which its hash reads all
	maxNodes   = 10_000_000 // values that a step reads
	maxBytes   = 256e6      // bytes of strings that a step reads
)

// Limits of an evaluation that tests change.
var (
	maxTime         = 5 * time.Second
	maxSteps uint64 = 10_000_000
)

// watchEvery is how often the heap is measured.
const watchEvery = 20 * time.Millisecond

// size formats a number of bytes.
func size(bytes int) string { return units.Bytes(int64(bytes)) }

// A guard ends an evaluation that takes too long or too much memory.
type guard struct {
	thread *starlark.Thread
	base   heapSize // before the evaluation
	reason atomic.Pointer[string]
	done   chan struct{}
	ended  chan struct{}
}

// startGuard watches a thread until stop is called.
func startGuard(ctx context.Context, thread *starlark.Thread) *guard {
	g := &guard{thread: thread, base: heap(), done: make(chan struct{}), ended: make(chan struct{})}
	thread.SetMaxExecutionSteps(maxSteps)
	thread.OnMaxSteps = func(*starlark.Thread) { g.end(fmt.Sprintf("the expression takes more than %d steps", maxSteps)) }
	go g.watch(ctx)
	return g
}

func (g *guard) watch(ctx context.Context) {
	defer close(g.ended)
	late, tick := time.NewTimer(maxTime), time.NewTicker(watchEvery)
	defer late.Stop()
	defer tick.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-ctx.Done():
			g.end(context.Cause(ctx).Error())
			return
		case <-late.C:
			g.end(fmt.Sprintf("the expression takes longer than %v", maxTime))
			return
		case <-tick.C:
			if err := g.room(0); err != nil {
				g.fail(err)
				return
			}
		}
	}
}

// stop ends watching.
func (g *guard) stop() {
	close(g.done)
	<-g.ended
}

// end stops the thread at its next step. The first reason counts.
func (g *guard) end(reason string) {
	g.reason.CompareAndSwap(nil, &reason)
	g.thread.Cancel(reason)
}

// stopped returns the reason for which the evaluation must end.
func (g *guard) stopped() error {
	if reason := g.reason.Load(); reason != nil {
		return errors.New(*reason)
	}
	return nil
}

// fail ends the evaluation with an error.
func (g *guard) fail(err error) { g.end(err.Error()) }

// room returns an error if the heap would be too large with further bytes. It is also too large
// if there is much garbage, since the collector needs time to free that.
func (g *guard) room(more int) error {
	now := heap()
	if now.live+more > g.base.live+maxHeap || now.all+more > g.base.all+maxHeap*3/2 {
		return fmt.Errorf("the expression's values take more than %s", size(maxHeap))
	}
	return nil
}

// reserve checks that there is room for a value before it is made.
func (g *guard) reserve(bytes int) error {
	const small = 1 << 20 // the watch sees those
	if bytes > small {
		if err := g.room(bytes); err != nil {
			return err
		}
	}
	return g.stopped()
}

// A heapSize is the number of bytes of Go's heap, with garbage and, at the last collection, without.
type heapSize struct{ all, live int }

func heap() heapSize {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return heapSize{int(samples[0].Value.Uint64()), int(samples[1].Value.Uint64())}
}

// A scale measures values before they are read completely, which a step cannot do in parts.
type scale struct {
	nodes, bytes       int
	maxNodes, maxBytes int
}

// weigh measures values that a step of Starlark reads completely.
func weigh(values ...starlark.Value) (*scale, error) {
	s := &scale{maxNodes: maxNodes, maxBytes: maxBytes}
	for _, v := range values {
		if err := s.add(v, 0); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *scale) add(v starlark.Value, depth int) error {
	s.nodes++
	s.bytes += textSize(v)
	if depth > maxNesting {
		return fmt.Errorf("a %s is nested more than %d deep", v.Type(), maxNesting)
	}
	if s.nodes > s.maxNodes {
		return fmt.Errorf("more than %d values at once", s.maxNodes)
	}
	if s.bytes > s.maxBytes {
		return fmt.Errorf("more than %s at once", size(s.maxBytes))
	}
	switch v := v.(type) {
	case starlark.Tuple:
		for _, x := range v {
			if err := s.add(x, depth+1); err != nil {
				return err
			}
		}
	case *starlark.List:
		for x := range v.Elements() {
			if err := s.add(x, depth+1); err != nil {
				return err
			}
		}
	case *starlark.Set:
		for x := range v.Elements() {
			if err := s.add(x, depth+1); err != nil {
				return err
			}
		}
	case *starlark.Dict:
		for k, x := range v.Entries() {
			if err := s.add(k, depth+1); err != nil {
				return err
			}
			if err := s.add(x, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// textSize estimates how many bytes the text of a value has, without those of the values in it.
func textSize(v starlark.Value) int {
	switch v := v.(type) {
	case starlark.String:
		return 4 + len(v)
	case starlark.Bytes:
		return 4 + 4*len(v)
	case starlark.Int:
		return 4 + bitLen(v)/3
	case *tensor, *starlark.Function, *starlark.Builtin:
		return 100
	}
	return 24
}

// bitLen is the number of bits of a whole number.
func bitLen(v starlark.Int) int {
	if _, ok := v.Int64(); ok {
		return 64
	}
	return v.BigInt().BitLen()
}

// checkTuple refuses tuples with so many values that computing a hash of one, which is recursive,
// takes long.
func checkTuple(v starlark.Value) error {
	if _, ok := v.(starlark.Tuple); !ok {
		return nil
	}
	s := scale{maxNodes: maxTuple, maxBytes: maxText}
	if err := s.inTuple(v, 0); err != nil {
		return fmt.Errorf("a tuple with %w", err)
	}
	return nil
}

// inTuple is add for tuples in tuples only, since other values that contain values have no hash.
func (s *scale) inTuple(v starlark.Value, depth int) error {
	if t, ok := v.(starlark.Tuple); ok && depth <= maxNesting {
		s.nodes++
		for _, x := range t {
			if err := s.inTuple(x, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if t, ok := v.(starlark.Tuple); ok {
		return s.add(t, depth)
	}
	s.nodes++
	s.bytes += textSize(v)
	if s.nodes > s.maxNodes {
		return fmt.Errorf("more than %d values", s.maxNodes)
	}
	if s.bytes > s.maxBytes {
		return fmt.Errorf("more than %s of text", size(s.maxBytes))
	}
	return nil
}

// count returns the number of elements that an iterable value has at most.
func count(v starlark.Value) int {
	if n := starlark.Len(v); n >= 0 {
		return n
	}
	return maxText // the characters of a string
}

// checkCount refuses a list, tuple, dict or set with too many elements.
func (g *guard) checkCount(n, each int) error {
	if n > maxList {
		return fmt.Errorf("%d elements: at most %d are possible", n, maxList)
	}
	return g.reserve(n * each)
}

// checkInt refuses whole numbers whose arithmetic takes long.
func checkInt(bits int) error {
	if bits > maxBits {
		return fmt.Errorf("a whole number of %d bits: at most %d are possible", bits, maxBits)
	}
	return nil
}

// power returns x to the power of y for whole numbers, where y is not negative.
func power(x, y starlark.Int) (starlark.Value, error) {
	b := x.BigInt()
	if b.IsInt64() && max(b.Int64(), -b.Int64()) <= 1 && y.Sign() > 0 { // for any y
		if y.BigInt().Bit(0) == 0 {
			return x.Mul(x), nil
		}
		return x, nil
	}
	n, ok := y.Int64()
	if !ok || n > maxBits {
		n = maxBits
	}
	if err := checkInt(b.BitLen() * int(n)); err != nil {
		return nil, err
	}
	return starlark.MakeBigInt(new(big.Int).Exp(b, big.NewInt(n), nil)), nil
}
