package inspect

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// Read computes the statistics of every tensor, and checks the tokenizers: one that cannot be used
// is added to the components, with an Err. It keeps only a few megabytes in memory
// and reads on GOMAXPROCS goroutines, at most 16. Progress, if not nil, is called with
// the number of bytes of a component that were read.
func (w *Weights) Read(ctx context.Context, progress func(component string, done, total int64)) error {
	for _, c := range w.Components {
		if c.ck == nil {
			continue
		}
		done := progressCounter(c.Name, c.Tensors, progress)
		err := forEach(ctx, c.Tensors, func(ctx context.Context, t *TensorWeights) (err error) {
			t.Stats, err = c.ck.Stats(ctx, t.Tensor, done)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, dir := range w.tokenizers {
		if err := tokenizer.Check(w.fsys, dir); err != nil {
			w.Components = append(w.Components, &ComponentWeights{Name: dir, Err: err})
		}
	}
	return nil
}

// progressCounter returns a function that adds a number of bytes to the progress of a
// component. Several goroutines may call it.
func progressCounter(component string, list []*TensorWeights, progress func(component string, done, total int64)) func(int64) {
	var mu sync.Mutex
	var sum, total int64
	for _, t := range list {
		total += t.Bytes()
	}
	return func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if sum += n; progress != nil {
			progress(component, sum, total)
		}
	}
}

// forEach calls f with every item, from several goroutines, until a call fails.
func forEach[T any](ctx context.Context, list []T, f func(context.Context, T) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(min(runtime.GOMAXPROCS(0), 16))
	for _, item := range list {
		workers.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return f(ctx, item)
		})
	}
	return workers.Wait()
}
