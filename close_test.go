package gomflux_test

import (
	"context"
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// activeMemory returns the memory of MLX's arrays in bytes.
func activeMemory(t *testing.T) (n int) {
	t.Helper()
	if err := mlx.Do(context.Background(), func() error { n = mlx.ActiveMemory(); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCloseFrees checks that MLX holds as much after a model was closed as before it was opened,
// for every pipeline class and every way in which its use can end. Go's collector frees nothing.
func TestCloseFrees(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	folders, err := filepath.Glob("models/testdata/*/model")
	if err != nil {
		t.Fatal(err)
	}
	var ofClasses []string // the first of each
	tested := map[string]bool{}
	for _, folder := range folders {
		x, err := index.Read(os.DirFS(folder))
		if err != nil || tested[x.Class] { // a folder may have an autoencoder alone
			continue
		}
		tested[x.Class] = true
		ofClasses = append(ofClasses, folder)
	}
	for _, folder := range randtest.Some(3, ofClasses) {
		t.Run(filepath.Base(filepath.Dir(folder)), func(t *testing.T) { testClosings(t, folder) })
	}
	for _, class := range family.Classes() {
		if !tested[class] {
			t.Errorf("no golden of a %s", class)
		}
	}
}

func testClosings(t *testing.T, folder string) {
	lora := filepath.Join(t.TempDir(), "lora.safetensors")
	if err := modeltest.WriteLoRA(lora, folder, 1); err != nil {
		t.Fatal(err)
	}
	loras := []gomflux.LoRA{{Path: lora}}
	cached := gomflux.OpenOptions{PromptCache: filepath.Join(t.TempDir(), "prompts"), Quantize: gomflux.Bits8, GroupSize: 32}
	for _, way := range []struct {
		name string
		open gomflux.OpenOptions
		use  func(*closing)
	}{
		{"images", gomflux.OpenOptions{PreviewDecoder: filepath.Join(folder, "vae")}, (*closing).images},
		{"prompt cache", cached, (*closing).cachedPrompt},
		{"canceled runs", gomflux.OpenOptions{LoRAs: loras}, (*closing).canceledRuns},
		{"low RAM", gomflux.OpenOptions{LowRAM: true, LoRAs: loras, RuntimeLoRA: true}, (*closing).canceledRuns},
		{"canceled loading", gomflux.OpenOptions{LoRAs: loras, RuntimeLoRA: true}, (*closing).canceledLoading},
		{"error after loading", gomflux.OpenOptions{LoRAs: loras}, (*closing).canceledHash},
		{"error of a preview decoder", gomflux.OpenOptions{PreviewDecoder: "vae/testdata/tiny-odd"}, (*closing).otherPreviews},
		{"autoencoder", gomflux.OpenOptions{}, (*closing).autoencoder},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := &closing{T: t, folder: folder, open: way.open, before: activeMemory(t)}
			c.open.Device = gomflux.CPU
			way.use(c)
			c.closed("")
		})
	}
}

// A closing uses a model in one way and closes it.
type closing struct {
	*testing.T
	folder string
	open   gomflux.OpenOptions
	before int // active memory before it is opened
}

// closed checks the memory after a model was closed.
func (c *closing) closed(when string) {
	c.Helper()
	if after := activeMemory(c.T); after > c.before {
		c.Errorf("%s%d bytes after closing, %d before opening", when, after, c.before)
	}
}

// close closes a model after it was used.
func (c *closing) close(m interface{ Close() error }) {
	c.Helper()
	if used := activeMemory(c.T); used < c.before+10_000 {
		c.Errorf("%d bytes in use, %d before opening", used, c.before)
	}
	if err := m.Close(); err != nil {
		c.Error(err)
	}
}

// model opens the model.
func (c *closing) model() *gomflux.Model {
	c.Helper()
	m, err := gomflux.Open(c.Context(), c.folder, &c.open)
	if err != nil {
		c.Fatal(err)
	}
	return m
}

// options returns options of a small image with a negative prompt and input images, where the model
// takes them.
func (c *closing) options(m *gomflux.Model, prompt string) gomflux.Options {
	o := gomflux.Options{Prompt: prompt, Height: 32, Width: 32, Steps: 2, Seed: ptr[uint64](1), MaxSequenceLength: 64}
	img, mask := photo(72, 64, 16)
	switch {
	case family.Find(m.Class()).References != 0:
		o.References = []image.Image{img}
	case m.Check(o) != nil: // it only fills masks
		o.Image, o.Mask = img, mask
	}
	if o.Guidance = ptr(2.5); m.Check(o) != nil {
		o.Guidance = nil // which the model does not have
	}
	if m.UsesNegativePrompt(o) {
		o.NegativePrompt = "not " + prompt
	}
	return o
}

// images generates images with more prompts than are kept, with previews, input images, a step
// cache and in a batch.
func (c *closing) images() {
	m := c.model()
	for i, prompt := range []string{"a", "b", "c"} {
		o, seeds := c.options(m, prompt), []uint64{1}
		img, mask := photo(96, 64, 32)
		switch {
		case i > 0 && m.Layers() > 0: // its only input image is the one that it splits
		case i == 0:
			o.StepCache, o.Steps, seeds = "first-block:0.5", 12, []uint64{1, 2}
		case i == 1:
			o.Height, o.Width = 0, 0
			if o.Image, o.Mask = img, mask; m.Check(o) != nil {
				o.References = nil // the image to inpaint is the only one
			}
		case o.Mask == nil:
			o.Image = img
		}
		o.OnStep = func(s gomflux.Step) error {
			_, err := m.Preview(c.Context(), s.Denoised)
			return err
		}
		if _, err := m.GenerateBatch(c.Context(), o, seeds); err != nil {
			c.Error(err)
		}
	}
	c.close(m)
}

// cachedPrompt generates an image twice, with a text encoder and without one.
func (c *closing) cachedPrompt() {
	for _, cached := range []bool{false, true} {
		m := c.model()
		o := c.options(m, "a")
		r, err := m.Generate(c.Context(), o)
		if err != nil {
			c.Fatal(err)
		}
		if r.PromptCached != cached {
			c.Errorf("prompt is cached: %t", r.PromptCached)
		}
		c.close(m)
		c.closed("")
		c.open.For = []gomflux.Options{o}
	}
}

// canceledRuns cancels a run in each phase.
func (c *closing) canceledRuns() {
	for _, phase := range []gomflux.Phase{gomflux.PhaseEncode, gomflux.PhaseStep, gomflux.PhaseDecode} {
		m := c.model()
		ctx, cancel := context.WithCancel(c.Context())
		o := c.options(m, "a")
		o.Progress = func(p gomflux.Progress) {
			if p.Phase == phase && (phase != gomflux.PhaseStep || p.Step == 1) {
				cancel()
			}
		}
		if _, err := m.Generate(ctx, o); !errors.Is(err, context.Canceled) {
			c.Errorf("canceled in phase %s: error %v", phase, err)
		}
		c.close(m)
		c.closed("canceled in phase " + string(phase) + ": ")
	}
}

// canceledLoading cancels loading in the middle of each component.
func (c *closing) canceledLoading() {
	var components []string
	for done := false; !done; {
		ctx, cancel := context.WithCancel(c.Context())
		done = true
		c.open.Progress = func(p gomflux.Progress) {
			if done && p.Bytes > p.TotalBytes/2 && !slices.Contains(components, p.Component) {
				components, done = append(components, p.Component), false
				cancel()
			}
		}
		m, err := gomflux.Open(ctx, c.folder, &c.open)
		if done != (err == nil) {
			c.Errorf("canceled in %v: error %v", components, err)
		}
		if err == nil {
			c.close(m)
		}
		c.closed(fmt.Sprintf("canceled in %v: ", components))
		cancel()
	}
}

// canceledHash cancels the context when all weights are loaded, so that LoRAs cannot be hashed.
func (c *closing) canceledHash() {
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	c.open.Progress = func(p gomflux.Progress) {
		if p.Component == "vae" && p.Bytes == p.TotalBytes {
			cancel()
		}
	}
	if _, err := gomflux.Open(ctx, c.folder, &c.open); !errors.Is(err, context.Canceled) {
		c.Errorf("error %v", err)
	}
}

// otherPreviews opens the model with a preview decoder for other latents.
func (c *closing) otherPreviews() {
	if _, err := gomflux.Open(c.Context(), c.folder, &c.open); !errors.Is(err, gomflux.ErrRequest) {
		c.Errorf("error %v", err)
	}
}

// autoencoder uses the autoencoder alone, after loading it was canceled.
func (c *closing) autoencoder() {
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	c.open.Progress = func(p gomflux.Progress) { cancel() }
	if _, err := gomflux.OpenVAE(ctx, c.folder, &c.open); !errors.Is(err, context.Canceled) {
		c.Errorf("canceled: error %v", err)
	}
	c.closed("canceled: ")
	c.open.Progress = nil
	v, err := gomflux.OpenVAE(c.Context(), c.folder, &c.open)
	if err != nil {
		c.Fatal(err)
	}
	l, err := v.Encode(c.Context(), image.NewRGBA(image.Rect(0, 0, 32, 32)))
	if err == nil {
		_, err = v.Decode(c.Context(), l)
	}
	if err == nil {
		_, err = v.Preview(c.Context(), l)
	}
	if err != nil {
		c.Error(err)
	}
	c.close(v)
}

// TestClosed checks that Close waits for a run, is an error in a callback of one, and can be called
// again, and that a closed model returns errors.
func TestClosed(t *testing.T) {
	m := open(t, nil)
	running, closed := make(chan struct{}), make(chan error)
	go func() {
		<-running
		closed <- m.Close()
	}()
	o, steps := options(1), 0
	o.OnStep = func(s gomflux.Step) error {
		if steps++; steps == 1 {
			if err := m.Close(); err == nil {
				t.Error("a callback closed the model that called it")
			}
			close(running)
		}
		return nil
	}
	if _, err := m.Generate(t.Context(), o); err != nil || steps != o.Steps {
		t.Errorf("%d steps: error %v", steps, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("closed again: error %v", err)
	}
	v, err := gomflux.OpenVAE(t.Context(), tiny, onCPU(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	ctx, img, latents := t.Context(), image.NewRGBA(image.Rect(0, 0, 8, 8)), gomflux.Latents{}
	for name, use := range map[string]func() error{
		"Check":          func() error { return m.Check(options(1)) },
		"Generate":       func() error { _, err := m.Generate(ctx, options(1)); return err },
		"Preview":        func() error { _, err := m.Preview(ctx, latents); return err },
		"VAE.Encode":     func() error { _, err := v.Encode(ctx, img); return err },
		"VAE.Decode":     func() error { _, err := v.Decode(ctx, latents); return err },
		"VAE.Preview":    func() error { _, err := v.Preview(ctx, latents); return err },
		"DecodeUnscaled": func() error { _, err := v.DecodeUnscaled(ctx, latents); return err },
	} {
		if err := use(); !errors.Is(err, gomflux.ErrClosed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
