package mlx_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

func TestDoFromManyGoroutines(t *testing.T) {
	threads := map[int]bool{} // used by jobs only, which run one after the other
	var running, jobs atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			err := mlx.Do(context.Background(), func() error {
				if running.Add(1) != 1 {
					t.Error("two jobs run at once")
				}
				defer running.Add(-1)
				threads[threadID()] = true
				if got := mlx.Full(float64(i), mlx.Float32, 3).Sum(0).Item(); got != float32(3*i) {
					t.Errorf("found %v, expected %v", got, 3*i)
				}
				runtime.Gosched()
				jobs.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if jobs.Load() != 50 || len(threads) != 1 {
		t.Errorf("%d jobs ran on %d threads, expected 50 on 1", jobs.Load(), len(threads))
	}
}

func TestCallRunsOnTheCaller(t *testing.T) {
	runtime.LockOSThread() // so that the thread's ID identifies this goroutine
	defer runtime.UnlockOSThread()
	here, there, called := threadID(), 0, 0
	var steps []float32
	mlxtest.Do(t, func() {
		there = threadID()
		for i := range 3 {
			host := mlx.Full(float64(i), mlx.Float32, 2).Floats()
			mlx.Call(func() { called = threadID(); steps = append(steps, host[0]) })
		}
	})
	if runtime.GOOS == "linux" && (called != here || there == here) {
		t.Errorf("callback on thread %d, expected the caller's, %d (MLX's is %d)", called, here, there)
	}
	mlxtest.Same(t, "steps", steps, []float32{0, 1, 2})
}

func TestReentrance(t *testing.T) {
	ran := 0
	nested := func() error {
		return mlx.Do(context.Background(), func() error { ran++; return nil })
	}
	mlxtest.Do(t, func() {
		if err := nested(); !errors.Is(err, mlx.ErrReentrant) {
			t.Errorf("Do inside Do: found %v", err)
		}
		mlx.Compile(func(in []*mlx.Array) []*mlx.Array {
			if err := nested(); !errors.Is(err, mlx.ErrReentrant) {
				t.Errorf("Do inside a compiled function: found %v", err)
			}
			mlx.Call(func() {
				if err := nested(); !errors.Is(err, mlx.ErrReentrant) {
					t.Errorf("Do inside Call inside a compiled function: found %v", err)
				}
			})
			return in
		})([]*mlx.Array{mlx.Zeros(mlx.Float32, 1)})
	})
	if ran > 0 {
		t.Error("a job ran on top of a job")
	}
	if err := nested(); err != nil || ran != 1 { // the same goroutine may use Do again afterwards
		t.Errorf("after the job: found %v", err)
	}
}

// TestDoInsideCall checks that a callback can use Do without a change to the outer job.
func TestDoInsideCall(t *testing.T) {
	inner := func(f func() error) error { return mlx.Do(context.Background(), f) }
	var sum float32
	mlxtest.Do(t, func() {
		if err := mlx.Use(mlx.CPU); err != nil {
			t.Fatal(err)
		}
		double := mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Times(2)} })
		x := mlx.Full(3, mlx.Float32, 4)
		mlx.Scope(func() *mlx.Array {
			y := x.Plus(1)
			mlx.Call(func() {
				for range 2 {
					err := inner(func() error {
						z := mlx.Full(5, mlx.Float32, 4)
						mlx.Call(func() {
							if err := inner(func() error { sum += mlx.Full(1, mlx.Float32, 4).Sum(0).Item(); return nil }); err != nil {
								t.Error(err)
							}
						})
						sum += z.Sum(0).Item()
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
				cause := errors.New("no")
				if err := inner(func() error { mlx.Throw(cause); return nil }); err != cause {
					t.Errorf("found %v, expected the inner job's own error", err)
				}
			})
			if mlx.CurrentDevice() != mlx.CPU {
				t.Error("the inner job changed the outer's device")
			}
			mlxtest.Same(t, "of the outer scope", y.Floats(), []float32{4, 4, 4, 4})
			return nil
		})
		mlxtest.Same(t, "compiled", double([]*mlx.Array{x})[0].Floats(), []float32{6, 6, 6, 6})
	})
	if sum != 2*(20+4) {
		t.Errorf("inner jobs found %v, expected %v", sum, 2*(20+4))
	}
}

func TestPanics(t *testing.T) {
	value := &struct{ int }{7}
	panicOf := func(f func()) (p any) {
		defer func() { p = recover() }()
		mlx.Do(context.Background(), func() error { f(); return nil })
		return nil
	}
	t.Run("of a callback", func(t *testing.T) {
		p := panicOf(func() { mlx.Scope(func() *mlx.Array { mlx.Call(func() { panic(value) }); return nil }) })
		if p != value {
			t.Errorf("found %v, expected the callback's own value", p)
		}
	})
	t.Run("of a callback in a compiled function", func(t *testing.T) {
		p := panicOf(func() {
			mlx.Compile(func(in []*mlx.Array) []*mlx.Array { mlx.Call(func() { panic(value) }); return in })(
				[]*mlx.Array{mlx.Zeros(mlx.Float32, 1)})
		})
		if p != value {
			t.Errorf("found %v, expected the callback's own value", p)
		}
	})
	t.Run("of a job", func(t *testing.T) {
		var nothing []int
		p, ok := panicOf(func() { _ = nothing[3] }).(string)
		if !ok {
			t.Fatal("a bug in a job did not panic in Do")
		}
		mlxtest.Contains(t, p, "index out of range [3]", "on the MLX thread", "thread_test.go:")
	})
	mlxtest.Do(t, func() { mlxtest.Same(t, "after", mlx.Full(1, mlx.Float32, 1).Floats(), []float32{1}) })
}

// TestGoexit checks that runtime.Goexit, which t.Fatal calls, ends the goroutine that called
// Do and not the thread.
func TestGoexit(t *testing.T) {
	for name, job := range map[string]func(){
		"in a job":      runtime.Goexit,
		"in a scope":    func() { mlx.Scope(func() *mlx.Array { runtime.Goexit(); return nil }) },
		"in a callback": func() { mlx.Call(runtime.Goexit) },
		"in a callback, then another": func() {
			defer mlx.Call(func() {})
			mlx.Call(runtime.Goexit)
		},
		"in a job inside a callback": func() {
			mlx.Call(func() { mlx.Do(context.Background(), func() error { runtime.Goexit(); return nil }) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan bool)
			go func() {
				returned := false
				defer func() { ended <- !returned }()
				mlx.Do(context.Background(), func() error { job(); return nil })
				returned = true
			}()
			select {
			case exit := <-ended:
				if !exit {
					t.Error("Do returned, expected it to end its goroutine")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("Do hangs")
			}
			mlxtest.Do(t, func() { mlxtest.Same(t, "after", mlx.Full(1, mlx.Float32, 1).Floats(), []float32{1}) })
		})
	}
}

func TestCancelWhileWaiting(t *testing.T) {
	started, release := make(chan bool), make(chan bool)
	first := make(chan error)
	go func() {
		first <- mlx.Do(context.Background(), func() error { started <- true; <-release; return nil })
	}()
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	err := mlx.Do(ctx, func() error { t.Error("a cancelled job ran"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("found %v, expected context.Canceled", err)
	}
	close(release) // lets the first job end
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 { // Do chooses at random between a free thread and a done context
		err := mlx.Do(ctx, func() error { t.Error("a cancelled job ran"); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("found %v, expected context.Canceled", err)
		}
	}
}

// A deadline is a context whose deadline passes when over is closed.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestCancelWhileRunning checks that a job stops after the first block that ends when its
// context is done.
func TestCancelWhileRunning(t *testing.T) {
	cause := errors.New("the user pressed stop")
	stops := map[string]struct {
		ctx  func() (context.Context, func())
		want []error
	}{
		"cancelled": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			return ctx, cancel
		}, []error{context.Canceled}},
		"cancelled with a cause": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return ctx, func() { cancel(cause) }
		}, []error{context.Canceled, cause}},
		"past its deadline": {func() (context.Context, func()) {
			ctx := deadline{context.Background(), make(chan struct{})}
			return ctx, func() { close(ctx.over) }
		}, []error{context.DeadlineExceeded}},
	}
	loops := map[string]func(block func(i int, x *mlx.Array) *mlx.Array){
		"StopPoint": func(block func(i int, x *mlx.Array) *mlx.Array) {
			x := mlx.Zeros(mlx.Float32, 4)
			for i := range 10 {
				x = block(i, x)
				mlx.StopPoint(x)
			}
		},
		"Chain": func(block func(i int, x *mlx.Array) *mlx.Array) {
			mlx.Chain(mlx.Zeros(mlx.Float32, 4), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, block)
		},
	}
	for name, stop := range stops {
		for loopName, loop := range loops {
			t.Run(name+" in "+loopName, func(t *testing.T) {
				ctx, cancel := stop.ctx()
				blocks := 0
				err := mlx.Do(ctx, func() error {
					loop(func(i int, x *mlx.Array) *mlx.Array {
						blocks++
						if i == 3 {
							cancel()
						}
						return x.Plus(1)
					})
					return nil
				})
				for _, want := range stop.want {
					if !errors.Is(err, want) {
						t.Errorf("found %v, expected it to wrap %v", err, want)
					}
				}
				if blocks != 4 {
					t.Errorf("%d blocks ran, expected 4", blocks)
				}
			})
		}
	}
}

// TestStopPointEvaluates checks that a StopPoint evaluates its arrays on the CPU. Without
// that, all the work would be done at the end of the job.
func TestStopPointEvaluates(t *testing.T) {
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("only on the CPU")
		}
		x := mlx.Full(1, mlx.Float32, 1<<20).Plus(1)
		before := mlx.ActiveMemory()
		mlx.StopPoint(x)
		if grown := mlx.ActiveMemory() - before; grown < 4<<20 {
			t.Errorf("active memory grew by %d bytes, expected the array's %d", grown, 4<<20)
		}
	})
}

func TestUse(t *testing.T) {
	mlxtest.Do(t, func() {
		infos := mlx.Devices()
		if infos[0].Device != mlx.CPU {
			t.Errorf("found %v as the first device", infos[0])
		}
		best := infos[len(infos)-1].Device
		if mlx.CurrentDevice() != best {
			t.Errorf("a job starts on %v, expected %v", mlx.CurrentDevice(), best)
		}
		if len(infos) == 1 {
			if err := mlx.Use(mlx.GPU); err == nil || !strings.Contains(err.Error(), "no GPU") {
				t.Errorf("found %v for a missing GPU", err)
			}
		}
		if err := mlx.Use(mlx.CPU); err != nil || mlx.CurrentDevice() != mlx.CPU {
			t.Errorf("found %v on %v", err, mlx.CurrentDevice())
		}
		mlxtest.Same(t, "on the CPU", mlx.Full(2, mlx.Float32, 2).Square().Floats(), []float32{4, 4})
		for _, info := range infos {
			if dtype, _ := info.ComputeDtype(); dtype != info.Device.ComputeDtype() {
				t.Errorf("the %v computes in %v, expected %v", info.Device, info.Device.ComputeDtype(), dtype)
			}
		}
	})
	mlxtest.Do(t, func() { // Use applies to its job only
		infos := mlx.Devices()
		if best := infos[len(infos)-1].Device; mlx.CurrentDevice() != best {
			t.Errorf("the next job starts on %v, expected %v", mlx.CurrentDevice(), best)
		}
	})
}

func TestVersion(t *testing.T) {
	mlxtest.Do(t, func() {
		if v := mlx.Version(); !strings.HasPrefix(v, "0.32.") {
			t.Errorf("found MLX %q, expected 0.32", v)
		}
	})
}

// TestSignalsDuringEval checks that signals neither interrupt an evaluation nor change its
// result.
func TestSignalsDuringEval(t *testing.T) {
	stop := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				syscall.Kill(os.Getpid(), syscall.SIGURG) // the signal with which Go preempts goroutines
			}
		}
	})
	mlxtest.Do(t, func() {
		x := mlx.Full(1, mlx.Float32, 300, 300)
		for range 20 {
			x = x.Matmul(x).Over(300)
		}
		if got := x.Slice(0, 7, 8).Slice(1, 9, 10).Item(); got != 1 {
			t.Errorf("found %v, expected 1", got)
		}
	})
	close(stop)
	wg.Wait()
}
