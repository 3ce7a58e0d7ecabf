package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/draw"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
)

const tiny = "models/testdata/zimage-ordinary/model"

func ptr[T any](v T) *T { return &v }

// open opens the tiny model, on the CPU unless options name a device, so that equal runs with
// and without a hook are equal bit for bit on all machines.
func open(t *testing.T, o *gomflux.OpenOptions) *gomflux.Model {
	t.Helper()
	m, err := gomflux.Open(context.Background(), tiny, onCPU(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// onCPU returns options, which may be nil, with the CPU as the device unless they name another.
func onCPU(o *gomflux.OpenOptions) *gomflux.OpenOptions {
	with := gomflux.OpenOptions{}
	if o != nil {
		with = *o
	}
	if with.Device == "" {
		with.Device = gomflux.CPU
	}
	return &with
}

func options(seed uint64) gomflux.Options {
	return gomflux.Options{Prompt: "a red circle", Height: 24, Width: 40, Steps: 3, Guidance: ptr(0.0), Seed: &seed}
}

func TestSeeds(t *testing.T) {
	m := open(t, nil)
	pictures := map[string]uint64{}
	for _, seed := range []uint64{1, 2, 1 << 40} {
		var first []byte
		for range 2 {
			r, err := m.Generate(context.Background(), options(seed))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = r.Image.Pix
			}
			if !bytes.Equal(first, r.Image.Pix) {
				t.Errorf("seed %d gives two pictures", seed)
			}
		}
		if other, ok := pictures[string(first)]; ok {
			t.Errorf("seeds %d and %d give one picture", other, seed)
		}
		pictures[string(first)] = seed
	}
	o := options(0)
	o.Seed = nil
	a, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Seed = &a.Settings.Seed
	b, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Image.Pix, b.Image.Pix) {
		t.Error("the random seed that was told does not give the picture again")
	}
}

func TestGuidance(t *testing.T) {
	m := open(t, nil)
	generate := func(guidance float64, negative string) []byte {
		o := options(1)
		o.Guidance, o.NegativePrompt = &guidance, negative
		r, err := m.Generate(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r.Image.Pix
	}
	none := generate(0, "blurry")
	if !bytes.Equal(none, generate(0, "")) {
		t.Error("without guidance the negative prompt makes a difference")
	}
	if bytes.Equal(none, generate(2, "")) {
		t.Error("guidance makes no difference")
	}
	if bytes.Equal(generate(2, ""), generate(2, "blurry")) {
		t.Error("the negative prompt makes no difference")
	}
}

func TestBadOptions(t *testing.T) {
	m := open(t, nil)
	tests := []struct {
		change func(*gomflux.Options)
		want   string
	}{
		{func(o *gomflux.Options) { o.Height = 26 }, "height 26: must be a positive multiple of 8 (try 24)"},
		{func(o *gomflux.Options) { o.Width = -8 }, "width -8: must be a positive multiple of 8"},
		{func(o *gomflux.Options) { o.Steps = -1 }, "steps -1: must be at least 1"},
		{func(o *gomflux.Options) { o.Guidance = ptr(math.NaN()) }, "guidance NaN: must be a number"},
		{func(o *gomflux.Options) { o.Guidance = ptr(-1.0) }, "guidance -1: must be a number"},
		{func(o *gomflux.Options) { o.GuidanceInterval = []float64{0.5, 0.2} }, "guidance interval [0.5 0.2]: expected two numbers"},
		{func(o *gomflux.Options) { o.GuidanceInterval = []float64{} }, "guidance interval []: expected two numbers"},
		{func(o *gomflux.Options) { o.Guidance, o.GuidanceInterval = ptr(0.0), []float64{0, 1} },
			"guidance interval 0,1: needs classifier-free guidance"},
		{func(o *gomflux.Options) { o.Guidance, o.GuidanceInterval = ptr(2.0), []float64{0, 0.1} },
			"guidance interval 0,0.1: contains none of the"},
		{func(o *gomflux.Options) { o.TrueCFGScale = 2 }, "true CFG scale 2: ZImagePipeline does not have it (FLUX.1 does)"},
		{func(o *gomflux.Options) { o.Guidance, o.CFGTruncation = ptr(2.0), 1.5 }, "CFG truncation 1.5: must be above 0 and at most 1"},
		{func(o *gomflux.Options) { o.Guidance, o.CFGNormalization = ptr(2.0), math.NaN() }, "CFG normalization NaN: must be a number"},
		{func(o *gomflux.Options) { o.Guidance, o.CFGNormalization = ptr(0.0), 1 },
			"CFG normalization 1: needs classifier-free guidance"},
		{func(o *gomflux.Options) { o.Prompt, o.RefuseLongPrompts = strings.Repeat("circle ", 10000), true },
			"tokens, including the model's template, and the limit is 512"},
		{func(o *gomflux.Options) { o.Prompt = "\xff" }, "prompt: text is not valid UTF-8"},
		{func(o *gomflux.Options) { o.Prompt = "a\x00b" }, "prompt: text has a NUL character"},
		{func(o *gomflux.Options) { o.Latents = gomflux.Latents{Shape: []int{7}, Data: make([]float32, 7)} },
			"7 initial latents of shape [7], expected shape [4 6 10]"},
		{func(o *gomflux.Options) { o.Height, o.Width = 8, 64000 }, "the width has 8000 positions"},
		{func(o *gomflux.Options) { o.Height, o.Width = 8, 80000 }, "width 80000: must be at most 65536"},
		{func(o *gomflux.Options) { o.Height, o.Width = 16000, 16000 }, "an image of 16000x16000 has 256 megapixels, expected at most 100"},
	}
	for _, test := range tests {
		o := options(1)
		test.change(&o)
		_, err := m.Generate(context.Background(), o)
		if !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, expected %q", err, test.want)
		}
	}
}

// TestOptionsFrom converts the settings of an image back to options.
func TestOptionsFrom(t *testing.T) {
	m := open(t, nil)
	start := image.NewNRGBA(image.Rect(0, 0, 40, 24))
	for i := range start.Pix {
		start.Pix[i] = uint8(31 * i)
	}
	o := options(1 << 63)
	o.NegativePrompt, o.Guidance, o.MaxSequenceLength, o.Scheduler, o.RNG = "a blue square", ptr(2.5), 64, gomflux.Heun, gomflux.TorchNoise
	o.Image, o.ImageStrength, o.Steps = start, 0.25, 5
	first, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := first.Settings
	same := open(t, &gomflux.OpenOptions{Device: gomflux.Device(s.Device), Dtype: gomflux.Dtype(s.Dtype)})
	o = gomflux.OptionsFrom(&s)
	o.Image = start
	again, err := same.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Image.Pix, again.Image.Pix) {
		t.Error("another picture")
	}
	s.Seed, *o.Guidance = 0, 7
	if got := gomflux.OptionsFrom(&first.Settings); *got.Seed != 1<<63 || *got.Guidance != 2.5 {
		t.Errorf("seed %d, guidance %g", *got.Seed, *got.Guidance)
	}
}

// TestOpenFor: options that a model cannot do are an error before its weights
// are read.
func TestOpenFor(t *testing.T) {
	o := options(1)
	loading := false
	open := &gomflux.OpenOptions{For: []gomflux.Options{o}, Progress: func(gomflux.Progress) { loading = true }}
	m, err := gomflux.Open(context.Background(), tiny, open)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	m.Close() // again: nothing
	if !loading {
		t.Error("no progress of loading")
	}
	loading = false
	wide, long := o, o
	wide.Width = 41
	long.Prompt, long.RefuseLongPrompts = strings.Repeat("word ", 1000), true
	for name, runs := range map[string][]gomflux.Options{"one": {wide}, "the last": {o, wide}, "a prompt": {o, long}} {
		open.For = runs
		if _, err := gomflux.Open(context.Background(), tiny, open); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("%s: error %v, expected %v", name, err, gomflux.ErrRequest)
		}
		if loading {
			t.Errorf("%s: weights were loaded", name)
		}
	}
}

func TestBadOpenOptions(t *testing.T) {
	otherGPU := map[string]gomflux.Device{"metal": gomflux.CUDA, "cuda": gomflux.Metal}[mlx.GPU.String()]
	tests := []struct {
		folder string
		o      gomflux.OpenOptions
		want   string
	}{
		{tiny, gomflux.OpenOptions{Device: "tpu"}, `device "tpu": expected gpu or cpu`},
		{tiny, gomflux.OpenOptions{Device: otherGPU}, "device " + string(otherGPU) + ": a GPU is " + mlx.GPU.String() + " here"},
		{tiny, gomflux.OpenOptions{Dtype: "int8"}, `dtype "int8": expected float32`},
		{tiny, gomflux.OpenOptions{Dtype: "fp8"}, `dtype "fp8": expected float32`},
		{"models/testdata/nothing", gomflux.OpenOptions{}, "models/testdata/nothing"},
		{"models/testdata/zimage-ordinary/model/vae", gomflux.OpenOptions{}, "model_index.json"},
	}
	for _, test := range tests {
		_, err := gomflux.Open(context.Background(), test.folder, &test.o)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, expected %q", err, test.want)
		}
		if got, want := errors.Is(err, gomflux.ErrRequest), test.o.Device != "" || test.o.Dtype != ""; got != want {
			t.Errorf("%v: ErrRequest is %v, expected %v", err, got, want)
		}
	}
}

// edited copies the tiny model and lets change edit the copy.
func edited(t *testing.T, change func(dir string)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	change(dir)
	return dir
}

// TestDamagedModels checks that a damaged file is an error that names the file.
func TestDamagedModels(t *testing.T) {
	replace := func(file, old, new string) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), old) {
				t.Fatalf("%s has no %q", file, old)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(text), old, new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	const shard = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
	tests := []struct {
		name   string
		change func(dir string)
		want   []string
	}{
		{"class", replace("model_index.json", "ZImagePipeline", "OtherPipeline"),
			[]string{"model_index.json", `"OtherPipeline"`, "ZImagePipeline"}},
		{"no index", func(dir string) { os.Remove(filepath.Join(dir, "model_index.json")) }, []string{"model_index.json"}},
		{"missing shard", func(dir string) { os.Remove(filepath.Join(dir, shard)) }, []string{filepath.Base(shard)}},
		{"truncated", func(dir string) {
			info, err := os.Stat(filepath.Join(dir, shard))
			if err != nil {
				t.Fatal(err)
			}
			os.Truncate(filepath.Join(dir, shard), info.Size()-1)
		}, []string{shard}},
		{"layer count", replace("transformer/config.json", `"n_layers": 2`, `"n_layers": 3`),
			[]string{"missing: layers.2.attention.to_q.weight, expected [32 32]", "layers.2.ffn_norm2.weight"}},
		{"shape", replace("text_encoder/config.json", `"intermediate_size": `, `"intermediate_size": 1`),
			[]string{"wrong shape: model.layers.0.mlp.gate_proj.weight, expected", "found"}},
		{"other text encoder", replace("transformer/config.json", `"cap_feat_dim": `, `"cap_feat_dim": 1`),
			[]string{"hidden_size", "cap_feat_dim"}},
		{"other vae", replace("vae/config.json", `"latent_channels": `, `"latent_channels": 1`),
			[]string{"the vae's latent_channels is 14, but the transformer's in_channels is 4"}},
		{"unexpected", replace("transformer/config.json", `"n_layers": 2`, `"n_layers": 1`),
			[]string{"unexpected: layers.1.attention.to_q.weight"}},
		{"activation", replace("text_encoder/config.json", `"silu"`, `"gelu"`), []string{"text_encoder/config.json", `hidden_act "gelu"`}},
		{"config", replace("vae/config.json", "{", "{,"), []string{"vae/config.json", "line 1"}},
		{"scheduler", replace("scheduler/scheduler_config.json", `"use_karras_sigmas": false`, `"use_karras_sigmas": true`),
			[]string{"use_karras_sigmas"}},
		{"tokenizer", func(dir string) { os.WriteFile(filepath.Join(dir, "tokenizer/tokenizer.json"), []byte("{}"), 0o644) },
			[]string{"tokenizer/tokenizer.json"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := gomflux.Open(context.Background(), edited(t, test.change), nil)
			if err == nil {
				t.Fatal("the model was opened")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not have %q", err, want)
				}
			}
		})
	}
}

func TestConcurrent(t *testing.T) {
	m := open(t, nil)
	want := map[uint64][]byte{}
	for seed := range uint64(3) {
		r, err := m.Generate(context.Background(), options(seed))
		if err != nil {
			t.Fatal(err)
		}
		want[seed] = r.Image.Pix
	}
	var wg sync.WaitGroup
	for i := range uint64(9) {
		wg.Go(func() {
			o := options(i % 3)
			steps := 0
			o.Progress = func(p gomflux.Progress) {
				if p.Phase == gomflux.PhaseStep && p.Step > 0 {
					steps++ // on this goroutine: the race detector says otherwise
				}
			}
			r, err := m.Generate(context.Background(), o)
			switch {
			case err != nil:
				t.Error(err)
			case !bytes.Equal(r.Image.Pix, want[i%3]):
				t.Errorf("seed %d: another picture than alone", i%3)
			case steps != o.Steps:
				t.Errorf("%d steps reported, expected %d", steps, o.Steps)
			}
		})
	}
	wg.Wait()
}

func TestCancel(t *testing.T) {
	m := open(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	o := options(1)
	o.Steps = 1000
	o.Progress = func(p gomflux.Progress) {
		if p.Phase == gomflux.PhaseStep {
			if p.Step > 3 {
				t.Errorf("step %d after the run was cancelled", p.Step)
			}
			if p.Step == 3 {
				cancel()
			}
		}
	}
	if _, err := m.Generate(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, expected %v", err, context.Canceled)
	}
	if _, err := m.Generate(context.Background(), options(1)); err != nil {
		t.Errorf("after a cancelled run: %v", err)
	}
}

// TestCallInsideCallback: callbacks may use the model that calls them.
func TestCallInsideCallback(t *testing.T) {
	m := open(t, nil)
	want, err := m.Generate(context.Background(), options(1))
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Generate(context.Background(), options(2))
	if err != nil {
		t.Fatal(err)
	}
	o := options(1)
	hooked := 0
	o.Hook = func(gomflux.Tap) (gomflux.Tensor, error) { hooked++; return nil, nil }
	var seen []int
	o.Progress = func(gomflux.Progress) {
		before := hooked
		inner, err := m.Generate(context.Background(), options(2))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(inner.Image.Pix, other.Image.Pix) {
			t.Error("another picture than outside the callback")
		}
		if hooked != before {
			t.Error("the run in the callback used the hook of the run around it")
		}
		seen = append(seen, hooked)
	}
	got, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !sameWithHook(got.Image.Pix, want.Image.Pix) {
		t.Error("runs in its callbacks change a picture")
	}
	if hooked <= seen[len(seen)-1] {
		t.Error("the hook was lost on the way")
	}
}

// TestSteps checks the latents and the denoised latents of every step. After the last
// step both are those of the image.
func TestSteps(t *testing.T) {
	m := open(t, nil)
	ctx := context.Background()
	var steps []gomflux.Step
	var last *image.RGBA
	o := options(1)
	o.OnStep = func(s gomflux.Step) (err error) {
		steps = append(steps, s)
		last, err = m.Decode(ctx, s.Latents)
		return err
	}
	r, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != o.Steps {
		t.Fatalf("%d steps, expected %d", len(steps), o.Steps)
	}
	if !bytes.Equal(last.Pix, r.Image.Pix) {
		t.Error("the last step's latents are not the picture's")
	}
	sigma := 1.0
	for i, s := range steps {
		if s.Step != i+1 || s.Steps != o.Steps || s.Sigma >= sigma || !slices.Equal(s.Latents.Shape, []int{4, 6, 10}) ||
			!slices.Equal(s.Denoised.Shape, s.Latents.Shape) {
			t.Errorf("step %d is %d of %d, sigma %g, shape %v", i+1, s.Step, s.Steps, s.Sigma, s.Latents.Shape)
		}
		sigma = s.Sigma
	}
	if sigma != 0 {
		t.Errorf("the last sigma is %g", sigma)
	}
	for i, v := range steps[o.Steps-1].Latents.Data {
		if d := math.Abs(float64(v - steps[o.Steps-1].Denoised.Data[i])); d > 1e-5 {
			t.Fatalf("value %d of the last estimate is off by %g", i, d)
		}
	}

	stop := errors.New("seen enough")
	steps = nil
	o.OnStep = func(s gomflux.Step) error {
		if steps = append(steps, s); len(steps) == 2 {
			return stop
		}
		return nil
	}
	if _, err := m.Generate(ctx, o); !errors.Is(err, stop) || len(steps) != 2 {
		t.Errorf("error %v after %d steps", err, len(steps))
	}
}

// TestSettings generates the same image again from the settings of a result.
func TestSettings(t *testing.T) {
	m := open(t, nil)
	o := options(3)
	o.NegativePrompt, o.Guidance = "blurry", ptr(1.5)
	r, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Settings
	again, err := m.Generate(context.Background(), gomflux.Options{
		Prompt: s.Prompt, NegativePrompt: s.NegativePrompt, Seed: &s.Seed, Steps: s.Steps, Guidance: &s.Guidance,
		Height: s.Height, Width: s.Width, MaxSequenceLength: s.MaxSequenceLength, Scheduler: gomflux.Scheduler(s.Scheduler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Image.Pix, r.Image.Pix) {
		t.Error("the settings make another picture")
	}
	if s.Model != tiny || s.Class != "ZImagePipeline" || s.Device != "cpu" || s.Dtype != "float32" || s.MLX == "" || s.Created.IsZero() {
		t.Errorf("settings %+v", s)
	}
}

func TestOpenVAE(t *testing.T) {
	ctx := context.Background()
	m := open(t, nil)
	var latents gomflux.Latents
	o := options(1)
	o.OnStep = func(s gomflux.Step) error { latents = s.Latents; return nil }
	r, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	alone := edited(t, func(dir string) {
		for _, part := range []string{"model_index.json", "transformer", "text_encoder", "tokenizer", "scheduler"} {
			os.RemoveAll(filepath.Join(dir, part))
		}
	})
	for _, folder := range []string{tiny, alone, filepath.Join(alone, "vae")} {
		v, err := gomflux.OpenVAE(ctx, folder, onCPU(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		img, err := v.Decode(ctx, latents)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(img.Pix, r.Image.Pix) {
			t.Errorf("%s: another picture than the whole model's", folder)
		}
		back, err := v.Encode(ctx, img)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(back.Shape, latents.Shape) {
			t.Errorf("latents of shape %v, expected %v", back.Shape, latents.Shape)
		}
		if _, err := v.Encode(ctx, image.NewRGBA(image.Rect(0, 0, 24, 41))); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("error %v for a picture of 24x41", err)
		}
		for _, bad := range []gomflux.Latents{{}, {Shape: []int{5, 6, 10}, Data: make([]float32, 300)},
			{Shape: []int{4, 6, 10}, Data: make([]float32, 239)}} {
			if _, err := v.Decode(ctx, bad); !errors.Is(err, gomflux.ErrRequest) {
				t.Errorf("error %v for latents of shape %v", err, bad.Shape)
			}
			if _, err := v.Preview(ctx, bad); !errors.Is(err, gomflux.ErrRequest) {
				t.Errorf("error %v for a preview of shape %v", err, bad.Shape)
			}
		}
	}
}

// TestImage checks that a stronger image-to-image keeps more of the image.
func TestImage(t *testing.T) {
	ctx := context.Background()
	m := open(t, nil)
	start := image.NewRGBA(image.Rect(0, 0, 50, 30)) // not a multiple of 8
	for i := range start.Pix {
		start.Pix[i] = uint8(37 * i)
		if i%4 == 3 {
			start.Pix[i] = 255
		}
	}
	off := map[float64]float64{}
	var latents gomflux.Latents
	for _, strength := range []float64{0.1, 0.5, 0.9} {
		o := options(1)
		o.Steps, o.Image, o.ImageStrength, o.Height, o.Width = 10, start, strength, 0, 0
		o.OnStep = func(s gomflux.Step) error { latents = s.Latents; return nil }
		r, err := m.Generate(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Image.Bounds().Dx() != 48 || r.Image.Bounds().Dy() != 24 || r.Settings.Width != 48 || r.Settings.Height != 24 {
			t.Fatalf("a picture of %v", r.Image.Bounds())
		}
		if want := 10 - int(10*strength); r.StepsRun != want || r.Settings.Steps != 10 {
			t.Errorf("strength %g: %d steps ran, expected %d", strength, r.StepsRun, want)
		}
		if r.Settings.ImageStrength != strength {
			t.Errorf("settings have strength %g", r.Settings.ImageStrength)
		}
		clean, err := m.Encode(ctx, picture.Resize(start, 48, 24))
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range latents.Data {
			d := float64(v - clean.Data[i])
			off[strength] += d * d
		}
	}
	if !(off[0.1] > off[0.5] && off[0.5] > off[0.9]) {
		t.Errorf("distances by strength: %v", off)
	}
	for strength, want := range map[float64]string{-0.1: "image strength -0.1", 1.1: "image strength 1.1", 1: "leaves no step"} {
		o := options(1)
		o.Image, o.ImageStrength = start, strength
		if _, err := m.Generate(ctx, o); !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
}

// TestReferences: the pictures that an edit is shown count, each and in order,
// and the prompt can speak of them by number.
func TestReferences(t *testing.T) {
	m, err := gomflux.Open(context.Background(), "models/testdata/flux2-klein/model", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	painted := func(w, h, step int) image.Image {
		img := image.NewNRGBA(image.Rect(0, 0, w, h))
		for i := range img.Pix {
			img.Pix[i] = uint8(step*i) | 0x80 // nowhere transparent
		}
		return img
	}
	a, b := painted(90, 70, 31), painted(64, 80, 7)
	edit := func(prompt string, o gomflux.Options) *image.RGBA {
		t.Helper()
		o.Prompt, o.Steps, o.Seed, o.MaxSequenceLength = prompt, 2, ptr(uint64(7)), 48
		r, err := m.Generate(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r.Image
	}
	show := func(images ...image.Image) gomflux.Options {
		return gomflux.Options{References: images, Height: 64, Width: 80}
	}
	pictures := map[string]string{}
	for name, o := range map[string]gomflux.Options{
		"none": show(), "a": show(a), "b": show(b), "a and b": show(a, b), "b and a": show(b, a), "a twice": show(a, a),
	} {
		pix := string(edit("a red hat", o).Pix)
		if other, ok := pictures[pix]; ok {
			t.Errorf("%s: the same picture as %s", name, other)
		}
		pictures[pix] = name
	}
	numbered, named := edit("$1 on $2", show(a, b)), edit("image 1 on image 2", show(a, b))
	if !bytes.Equal(numbered.Pix, named.Pix) {
		t.Error("$1 and $2 are not image 1 and image 2")
	}
	if bytes.Equal(numbered.Pix, edit("image 1 on image 1", show(a, b)).Pix) {
		t.Error("the prompt makes no difference")
	}

	multiple := m.Multiple()
	for _, test := range []struct {
		o    gomflux.Options
		want image.Point
	}{
		{gomflux.Options{References: []image.Image{a, b}}, image.Pt(90/multiple*multiple, 70/multiple*multiple)},
		{gomflux.Options{References: []image.Image{b, a}}, image.Pt(64, 80)},
		{gomflux.Options{References: []image.Image{b}, Height: 32}, image.Pt(25/multiple*multiple, 32)},
		{gomflux.Options{References: []image.Image{b}, Height: 32, Width: 96}, image.Pt(96, 32)},
	} {
		if got := edit("a red hat", test.o).Bounds().Size(); got != test.want {
			t.Errorf("a picture of %v, expected %v", got, test.want)
		}
	}

	var wrong *gomflux.ReferenceError
	_, err = m.Generate(context.Background(), gomflux.Options{Prompt: "x", References: []image.Image{a, painted(80, 63, 1)}})
	if !errors.Is(err, gomflux.ErrRequest) || !errors.As(err, &wrong) || wrong.Index != 1 {
		t.Errorf("error %v about %+v, expected one about reference 1", err, wrong)
	}
	_, err = open(t, nil).Generate(context.Background(), gomflux.Options{Prompt: "x", References: []image.Image{a}})
	if !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), "does not take reference images") {
		t.Errorf("error %v of a model that does not edit", err)
	}
}

// TestQwenReferences: Qwen-Image-Edit's pictures count for the text encoder and
// for the transformer, each and in order, and the last one gives the size.
func TestQwenReferences(t *testing.T) {
	ctx := context.Background()
	open := func(folder string) *gomflux.Model {
		m, err := gomflux.Open(ctx, filepath.Join("models/testdata", folder, "model"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	read := func(name string) image.Image {
		p, err := picture.ReadFile(filepath.Join("models/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return p.Image
	}
	a, b, c := read("qwen-edit-plus/first.png"), read("qwen-edit-plus/second.png"), read("qwen-edit-plus3/third.png")
	edit := func(m *gomflux.Model, o gomflux.Options, images ...image.Image) *image.RGBA {
		t.Helper()
		o.References, o.Steps, o.Seed = images, 2, ptr(uint64(7))
		if o.Prompt == "" {
			o.Prompt = "a red hat"
		}
		r, err := m.Generate(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		return r.Image
	}
	small := gomflux.Options{Height: 32, Width: 48}
	several, one := open("qwen-edit-plus"), open("qwen-edit")

	// with one model, which keeps encodings of prompts and pictures, and a new one
	pictures := map[string]string{}
	for _, test := range []struct {
		name   string
		images []image.Image
	}{
		{"a", []image.Image{a}}, {"b", []image.Image{b}}, {"a and b", []image.Image{a, b}}, {"b and a", []image.Image{b, a}},
		{"a twice", []image.Image{a, a}}, {"all", []image.Image{a, b, c}}, {"all, turned", []image.Image{c, b, a}},
	} {
		pix := string(edit(several, small, test.images...).Pix)
		if other, ok := pictures[pix]; ok {
			t.Errorf("%s: the same picture as %s", test.name, other)
		}
		pictures[pix] = test.name
		if pix != string(edit(open("qwen-edit-plus"), small, test.images...).Pix) {
			t.Errorf("%s: another picture than that of a model which was just opened", test.name)
		}
	}

	for _, test := range []struct {
		m      *gomflux.Model
		height int
		images []image.Image
		want   image.Point
	}{
		{several, 0, []image.Image{a, b}, image.Pt(32, 64)}, // b has 33x97 pixels
		{several, 0, []image.Image{b, a}, image.Pt(64, 32)}, // a has 75x50
		{several, 0, []image.Image{image.NewRGBA(image.Rect(0, 0, 1, 1))}, image.Pt(32, 32)},
		{several, 48, []image.Image{b, a}, image.Pt(96, 48)},
		{one, 0, []image.Image{b}, image.Pt(32, 96)}, // it has more pixels to fill
	} {
		o := gomflux.Options{Height: test.height}
		if got := edit(test.m, o, test.images...).Bounds().Size(); got != test.want {
			t.Errorf("a picture of %v, expected %v", got, test.want)
		}
	}

	guided, unguided := small, small
	guided.NegativePrompt, unguided.NegativePrompt, unguided.Guidance = "blue", "blue", ptr(1.0)
	if bytes.Equal(edit(one, small, a).Pix, edit(one, guided, a).Pix) {
		t.Error("the negative prompt makes no difference")
	}
	if !one.UsesNegativePrompt(guided) || one.UsesNegativePrompt(unguided) {
		t.Error("the negative prompt counts with guidance 1, or not with more")
	}

	long := image.NewRGBA(image.Rect(0, 0, 1000, 2))
	for name, test := range map[string]struct {
		m     *gomflux.Model
		o     gomflux.Options
		want  string
		index int // of the picture that is wrong, -1 for none
	}{
		"no picture":   {several, gomflux.Options{Prompt: "x"}, "edits images and needs at least one", -1},
		"two pictures": {one, gomflux.Options{Prompt: "x", References: []image.Image{a, b}}, "2 images: this model takes one", -1},
		"a long one":   {several, gomflux.Options{Prompt: "x", References: []image.Image{a, long}}, "has 1000x2 pixels", 1},
		"a picture's token": {several, gomflux.Options{Prompt: "a <|image_pad|>", References: []image.Image{a}},
			"the prompt itself must not contain <|image_pad|>", -1},
		"one in the negative": {several, gomflux.Options{Prompt: "x", NegativePrompt: "<|image_pad|>",
			References: []image.Image{a}}, "negative prompt: 2 image tokens", -1},
		"a long prompt": {one, gomflux.Options{Prompt: strings.Repeat("a red hat ", 200), RefuseLongPrompts: true,
			References: []image.Image{a}}, "and the limit is 512", -1},
	} {
		_, err := test.m.Generate(ctx, test.o)
		var wrong *gomflux.ReferenceError
		index := -1
		if errors.As(err, &wrong) {
			index = wrong.Index
		}
		if !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), test.want) || index != test.index {
			t.Errorf("%s: error %v about picture %d, expected %q about %d", name, err, index, test.want, test.index)
		}
	}
}

// TestPrompts checks that prompt embeddings kept from one run do not change later ones.
func TestPrompts(t *testing.T) {
	for _, folder := range []string{"flux1-dev-small", "flux2-klein-base", "qwen-image-ordinary"} {
		t.Run(folder, func(t *testing.T) {
			open := func() *gomflux.Model {
				m, err := gomflux.Open(context.Background(), filepath.Join("models/testdata", folder, "model"), nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { m.Close() })
				return m
			}
			picture := func(m *gomflux.Model, prompt string, seed uint64) string {
				o := gomflux.Options{Prompt: prompt, Height: 32, Width: 48, Steps: 2, Seed: &seed, MaxSequenceLength: 48}
				r, err := m.Generate(context.Background(), o)
				if err != nil {
					t.Fatal(err)
				}
				return string(r.Image.Pix)
			}
			one, different := open(), map[string]bool{}
			for _, prompt := range []string{"a red hat", "a blue hat", "a green hat", "a red hat"} {
				for _, seed := range []uint64{1, 2} {
					got := picture(one, prompt, seed)
					different[got] = true
					if seed == 1 && got != picture(open(), prompt, seed) {
						t.Errorf("%s: another picture than that of a model which was just opened", prompt)
					}
				}
			}
			if len(different) != 6 {
				t.Errorf("%d different pictures, expected 6", len(different))
			}
		})
	}
}

// TestBatch: a batch has the pictures that its seeds have alone. Products of a batch have more rows,
// which the BLAS library of the CPU may sum in another order, and not the same one for each row: that
// depends on the processor. It moves pixels whose values are near the middle between two integers,
// at most one in a hundred; another seed changes nearly all of them.
func TestBatch(t *testing.T) {
	for _, model := range modeltest.Networks() {
		t.Run(model.Name, func(t *testing.T) {
			m, err := gomflux.Open(context.Background(), filepath.Join("models/testdata", model.Name, "model"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			seeds := []uint64{5, 6, 5}
			steps := map[int]int{}
			o := gomflux.Options{Prompt: "a red hat", Height: 32, Width: 48, Steps: 2, MaxSequenceLength: 48}
			if o.Width%m.Multiple() != 0 {
				o.Width = 2 * m.Multiple()
			}
			if model.Fills {
				left := image.NewGray(image.Rect(0, 0, 48, 32))
				draw.Draw(left, image.Rect(0, 0, 24, 32), image.White, image.Point{}, draw.Src)
				o.Image, o.Mask = image.NewGray(left.Rect), left
			}
			if model.References > 0 {
				o.References = []image.Image{image.NewGray(image.Rect(0, 0, 64, 80))}
			}
			o.OnStep = func(s gomflux.Step) error { steps[s.Index]++; return nil }
			batch, err := m.GenerateBatch(context.Background(), o, seeds)
			if err != nil {
				t.Fatal(err)
			}
			for i := range seeds {
				if steps[i] != o.Steps {
					t.Errorf("%d steps of picture %d", steps[i], i)
				}
			}
			o.OnStep = nil
			for i, seed := range seeds {
				s := batch[i].Settings
				if s.Seed != seed || s.Batch != len(seeds) {
					t.Errorf("picture %d has the seed %d of a batch of %d", i, s.Seed, s.Batch)
				}
				o.Seed = &seed
				one, err := m.Generate(context.Background(), o)
				if err != nil {
					t.Fatal(err)
				}
				if one.Settings.Batch != 0 {
					t.Errorf("one picture is a batch of %d", one.Settings.Batch)
				}
				if off := differing(one, batch[i]); off > len(one.Image.Pix)/100 {
					t.Errorf("picture %d: %d of %d values are others than alone", i, off, len(one.Image.Pix))
				}
			}
			n := len(batch[0].Image.Pix)
			if same, other := differing(batch[0], batch[2]), differing(batch[0], batch[1]); same > n/100 || other < n/10 {
				t.Errorf("pictures of a batch do not follow their seeds: of %d values %d differ for one seed, %d for two", n, same, other)
			}
			if n := m.BatchSize(o); n != 1 && m.Device() == "cpu" || n < 1 {
				t.Errorf("a batch of %d is said to be the fastest", n)
			}
			for name, seeds := range map[string][]uint64{"none": {}, "nil": nil} {
				if _, err := m.GenerateBatch(context.Background(), o, seeds); !errors.Is(err, gomflux.ErrRequest) {
					t.Errorf("seeds %s: error %v", name, err)
				}
			}
			o.Latents = gomflux.Latents{Shape: []int{1}, Data: []float32{0}}
			if _, err := m.GenerateBatch(context.Background(), o, []uint64{1, 2}); !errors.Is(err, gomflux.ErrRequest) {
				t.Errorf("latents for a batch: error %v", err)
			}
		})
	}
}

// TestMemory makes 1,000 steps and expects MLX to hold no more after them than
// before.
func TestMemory(t *testing.T) {
	m := open(t, nil)
	active := func() (n, peak int) {
		if err := mlx.Do(context.Background(), func() error { n, peak = mlx.ActiveMemory(), mlx.PeakMemory(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n, peak
	}
	o := options(1)
	o.Steps = 10
	o.Guidance = ptr(1.5)
	var before, early int
	for i := range 50 { // twice 10 steps each, for guidance
		if _, err := m.Generate(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		now, peak := active()
		switch {
		case i == 0:
			before, early = now, peak
		case now != before:
			t.Fatalf("run %d: %d bytes after it, %d after the first", i, now, before)
		case i < 10:
			early = max(early, peak) // it depends a little on when MLX's threads free
		case peak > early+early/4:
			t.Fatalf("run %d: %d bytes at its peak, at most %d at the first ten", i, peak, early)
		}
	}
}

// TestReleaseMemory checks that MLX keeps nothing for later runs, and that the model still works.
func TestReleaseMemory(t *testing.T) {
	m := open(t, nil)
	for range 2 {
		if _, err := m.Generate(context.Background(), options(1)); err != nil {
			t.Fatal(err)
		}
		before := mlx.CacheMemory()
		if err := gomflux.ReleaseMemory(context.Background()); err != nil {
			t.Fatal(err)
		}
		if after := mlx.CacheMemory(); before == 0 || after != 0 {
			t.Errorf("MLX kept %d bytes after a run, and %d of them after ReleaseMemory", before, after)
		}
	}
}

func TestDtypes(t *testing.T) {
	o := options(3)
	want, err := open(t, nil).Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, dtype := range []gomflux.Dtype{gomflux.Float32, gomflux.BFloat16, gomflux.Float16} {
		r, err := open(t, &gomflux.OpenOptions{Dtype: dtype}).Generate(context.Background(), o)
		if err != nil {
			t.Fatalf("%s: %v", dtype, err)
		}
		var sum float64
		for i, v := range r.Image.Pix {
			d := float64(v) - float64(want.Image.Pix[i])
			sum += d * d
		}
		rms := math.Sqrt(sum / float64(len(r.Image.Pix)))
		t.Logf("%s: off by %.2f of 255", dtype, rms)
		if limit := map[gomflux.Dtype]float64{gomflux.Float32: 0, gomflux.BFloat16: 8, gomflux.Float16: 2}[dtype]; rms > limit {
			t.Errorf("%s: off by %.2f, expected at most %g", dtype, rms, limit)
		}
	}
}

// sameWithHook reports whether a run with a hook and one without gave the same image, up to 1: modules
// that a hook observes have products with other numbers of rows, which BLAS libraries round
// differently on some processors.
func sameWithHook(a, b []uint8) bool {
	for i := range min(len(a), len(b)) {
		if d := int(a[i]) - int(b[i]); d < -1 || d > 1 {
			return false
		}
	}
	return len(a) == len(b)
}

// differing counts the values in which two images of one size differ.
func differing(a, b *gomflux.Result) int {
	n := 0
	for i, v := range a.Image.Pix {
		if v != b.Image.Pix[i] {
			n++
		}
	}
	return n
}
