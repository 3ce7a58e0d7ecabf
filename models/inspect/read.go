package inspect

import (
	"context"
	"runtime"
	"sync"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Read sums up every tensor. It holds a few megabytes of them at a time, whatever
// their size, and reads with as many threads as Go runs. Progress, if it is not
// nil, is told how many bytes of a component are read.
func (w *Weights) Read(ctx context.Context, progress func(component string, done, total int64)) error {
	for _, c := range w.Components {
		if c.ck == nil {
			continue
		}
		r, err := checkpoint.OpenReader(c.ck)
		if err != nil {
			return err
		}
		done := counter(c.Name, c.Tensors, progress)
		err = each(ctx, c.Tensors, func(ctx context.Context, t *TensorWeights) (err error) {
			t.Stats, err = r.Stats(ctx, t.Tensor, done)
			return err
		})
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// counter returns what adds up how many bytes of a component's tensors are done.
// Several goroutines may call it.
func counter(component string, list []*TensorWeights, progress func(component string, done, total int64)) func(int64) {
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

// each calls f with every item, from several goroutines, until one call fails.
func each[T any](ctx context.Context, list []T, f func(context.Context, T) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	queue := make(chan T)
	failed := make(chan error, 1)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 16, len(list)) {
		workers.Go(func() {
			for item := range queue {
				err := f(ctx, item)
				if err == nil {
					continue
				}
				select {
				case failed <- err:
					stop(err)
				default:
				}
			}
		})
	}
	for _, item := range list {
		if ctx.Err() == nil {
			queue <- item
		}
	}
	close(queue)
	workers.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return context.Cause(ctx)
	}
}
