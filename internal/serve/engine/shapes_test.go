package engine_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/serve/engine"
	"github.com/gomflux/gomflux/mlx"
	_ "github.com/gomflux/gomflux/models/shapes"
	"github.com/gomflux/gomflux/picture"
)

// encoded returns the image file of a result, with its settings except for the time and the
// duration of its generation.
func encoded(t *testing.T, r *gomflux.Result) []byte {
	t.Helper()
	var b bytes.Buffer
	s := r.Settings
	s.Created, s.Seconds = time.Time{}, 0
	if err := picture.Encode(&b, picture.PNG, r.Image, &s); err != nil {
		t.Error(err)
	}
	return b.Bytes()
}

func openOnCPU(
	ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
) (engine.Model, error) {
	return gomflux.Open(ctx, name, &gomflux.OpenOptions{Device: gomflux.CPU, LoRAs: loras, Progress: progress})
}

// TestSameImage generates images with the built-in model: through the engine, while other clients
// submit, preview and cancel jobs, and without it. The files must be equal in every byte, except
// for the time.
func TestSameImage(t *testing.T) {
	model, err := gomflux.Open(t.Context(), "shapes", &gomflux.OpenOptions{Device: gomflux.CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	e := engine.New(engine.Config{
		Open: openOnCPU, Queue: 100, KeepAlive: -1, Keep: time.Hour,
		Models: func() []engine.ModelInfo {
			return []engine.ModelInfo{{Name: "shapes", Default: true, Defaults: model.Defaults()}}
		},
	})
	defer e.Close(t.Context())
	start := image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range start.Pix {
		start.Pix[i] = uint8(i) | 1
	}
	requests := []engine.Request{
		{Options: gomflux.Options{Prompt: "a red circle", Steps: 3}, Seeds: []uint64{7, 8}, Previews: -1},
		{Options: gomflux.Options{Prompt: "a red circle", Steps: 4, Image: start}, Seeds: []uint64{7}, Previews: 2},
		{Options: gomflux.Options{Prompt: "a blue square", Steps: 2, Height: 64, Width: 96}, Seeds: []uint64{1 << 31}},
		{
			Options: gomflux.Options{Prompt: "a green triangle", Steps: 4, Height: 64, Width: 64, Scheduler: gomflux.Heun},
			Seeds:   []uint64{9}, Previews: 1,
		},
	}
	var wg sync.WaitGroup
	for i, r := range requests {
		r.Client = r.Options.Prompt
		wg.Go(func() {
			same(t, e, model, r)
		})
		wg.Go(func() {
			other := r
			other.Previews = i
			j, err := e.Submit(t.Context(), other)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Duration(i) * 300 * time.Millisecond)
			j.Cancel()
			if err := j.Wait(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	counted := &modeltest.CountedGray{Gray: image.NewGray(start.Rect)}
	one := engine.Request{Options: gomflux.Options{Prompt: "a red circle", Steps: 2, Image: counted}, Seeds: []uint64{7}}
	same(t, e, model, one) // with the model alone too
	each := counted.Reads / 2
	one.Seeds = []uint64{7, 8, 9}
	same(t, e, model, one)
	if each == 0 || counted.Reads != (2+1+3)*each {
		t.Errorf("the image was read %d times, expected %d", counted.Reads, 6*each)
	}
	bad := engine.Request{Options: gomflux.Options{Prompt: "p", Steps: -1}, Seeds: []uint64{1}}
	if _, err := e.Submit(t.Context(), bad); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("error %v, expected one about the steps", err)
	}
}

// same compares the files of a request's images with those that the model generates without the
// engine.
func same(t *testing.T, e *engine.Engine, model *gomflux.Model, r engine.Request) {
	j, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Error(err)
		return
	}
	if err := j.Wait(t.Context()); err != nil {
		t.Error(err)
		return
	}
	previews := 0
	for event := range j.Events(t.Context(), 0) {
		if event.Kind == engine.EventPreview {
			previews++
		}
	}
	if (previews > 0) != (r.Previews != 0) {
		t.Errorf("%q: %d previews", r.Options.Prompt, previews)
	}
	pictures := j.Pictures()
	if len(pictures) != len(r.Seeds) {
		t.Errorf("%q: %d images, expected %d", r.Options.Prompt, len(pictures), len(r.Seeds))
		return
	}
	for i, p := range pictures {
		o := r.Options
		o.Seed = &r.Seeds[i]
		expected, err := model.Generate(t.Context(), o)
		if err != nil {
			t.Error(err)
			return
		}
		if !bytes.Equal(encoded(t, p.Result), encoded(t, expected)) {
			t.Errorf("%q, seed %d: the file differs", o.Prompt, p.Seed)
		}
	}
}

// TestUnloadFrees checks that the memory of MLX's arrays is back when a model is unloaded: on request,
// after KeepAlive, and after a job that was canceled in a step. Go's collector frees nothing.
func TestUnloadFrees(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if _, err := mlx.Open(); err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Config{
		Open: openOnCPU, Queue: 1, Keep: time.Hour, Memory: func() int64 { return int64(mlx.ActiveMemory()) },
		Models: func() []engine.ModelInfo { return []engine.ModelInfo{{Name: "shapes", Default: true}} },
	})
	defer e.Close(t.Context())
	unloaded := e.Stats().Memory
	run := func(cancel bool) (loaded int64) {
		o := gomflux.Options{Prompt: "a red circle", Height: 64, Width: 64, Steps: 3}
		j, err := e.Submit(t.Context(), engine.Request{Options: o, Seeds: []uint64{7}})
		if err != nil {
			t.Fatal(err)
		}
		for event := range j.Events(t.Context(), 0) {
			if event.Kind == engine.EventStep {
				loaded = max(loaded, e.Stats().Memory)
				if cancel {
					j.Cancel()
				}
			}
		}
		return loaded
	}
	for _, test := range []struct {
		name   string
		cancel bool
	}{{"first", false}, {"again", false}, {"canceled", true}} {
		loaded := run(test.cancel)
		for e.Models()[0].Loaded { // KeepAlive is 0
			time.Sleep(time.Millisecond)
		}
		e.Unload() // waits for the runner
		const weights = 20 << 20
		if after := e.Stats().Memory; after > unloaded || loaded < unloaded+weights || loaded > unloaded+2*weights {
			t.Errorf("%s: %d bytes before, %d with the model, %d after it was unloaded", test.name, unloaded, loaded, after)
		}
	}
}
