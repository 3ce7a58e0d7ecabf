package models

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/textenc"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// hostValues are overrides whose tensors are in host memory.
type hostValues map[string]func() *mlx.Array

func (k hostValues) Has(name string, step int) bool { return k[full(name, step)] != nil }

func (k hostValues) Array(name string, step int) (*mlx.Array, error) {
	return k[full(name, step)](), nil
}

func full(name string, step int) string { return hooks.Name{Module: name, Step: step}.String() }

// only returns some of the values.
func (k hostValues) only(names ...string) hostValues {
	out := hostValues{}
	for _, name := range names {
		if k[name] == nil {
			panic(name)
		}
		out[name] = k[name]
	}
	return out
}

// TestOverrides overrides values of runs by those of an earlier run: components that only lead to
// them must not be needed, and the image must be the same.
func TestOverrides(t *testing.T) {
	from := image.NewRGBA(image.Rect(0, 0, 24, 16))
	for i := range from.Pix {
		from.Pix[i] = uint8(37 * i)
	}
	for i := range 24 * 16 {
		from.Set(i%24, i/24, color.RGBA{uint8(i), uint8(3 * i), 100, 255})
	}
	plain := Request{Prompt: "a red circle", Height: 16, Width: 24, Steps: 3, Seed: 5, MaxSequenceLength: 64}
	guided, heun, image := plain, plain, plain
	guided.Guidance, guided.NegativePrompt = 3, "blurry"
	heun.Scheduler = "flow_match_heun_discrete"
	image.Image, image.ImageStrength = from, 0.4
	everything := []string{"scheduler", "text_encoder", "tokenizer", "transformer"} // besides the vae
	for _, c := range []struct {
		request Request
		given   []string
		unused  []string // components
		steps   int      // that run
	}{
		{plain, nil, nil, 3},
		{plain, []string{"latents.init"}, nil, 3},
		{plain, []string{"prompt.input_ids"}, []string{"tokenizer"}, 3},
		{plain, []string{"prompt.embeds"}, []string{"tokenizer", "text_encoder"}, 3},
		{plain, []string{"latents@0"}, nil, 2},
		{plain, []string{"latents@1", "prompt.embeds"}, []string{"tokenizer", "text_encoder"}, 1},
		{plain, []string{"latents@2"}, everything, 0},
		{plain, []string{"vae.decode.in"}, everything, 0},
		{plain, []string{"noise_pred@0", "noise_pred@1", "noise_pred@2"}, []string{"tokenizer", "text_encoder", "transformer"}, 3},
		{plain, []string{"noise_pred@1", "noise_pred@2"}, nil, 3},
		{plain, []string{"latents@0", "noise_pred@1", "noise_pred@2"}, []string{"tokenizer", "text_encoder", "transformer"}, 2},
		{guided, []string{"prompt.embeds"}, nil, 3},
		{guided, []string{"prompt.embeds", "negative.embeds"}, []string{"tokenizer", "text_encoder"}, 3},
		{guided, []string{"prompt.embeds", "negative.input_ids"}, []string{"tokenizer"}, 3},
		{heun, []string{"latents@0"}, nil, 3}, // within a step: replaced, and not skipped
		{heun, []string{"latents@1"}, nil, 2},
		{heun, []string{"latents@4"}, everything, 0},
		{image, []string{"latents.start"}, nil, 2},
		{image, []string{"latents.image"}, nil, 2},
		{image, []string{"latents@2"}, everything, 0},
	} {
		t.Run(fmt.Sprintf("%v %s", c.given, c.request.Scheduler), func(t *testing.T) {
			mlxtest.Do(t, func() {
				all := hostValues{}
				p := load(t, nil)
				r := c.request
				r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
					data, dtype, shape := tap.Output.Bytes(), tap.Output.Dtype(), tap.Output.Shape()
					all[tap.FullName()] = func() *mlx.Array { return mlx.FromBytes(data, dtype, shape...) }
					return nil, nil
				}
				want, err := p.Generate(r)
				if err != nil {
					t.Fatal(err)
				}

				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(ordinary)); err != nil {
					t.Fatal(err)
				}
				for _, name := range c.unused {
					if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
				r = c.request
				given := all.only(c.given...)
				r.Overrides = given
				var ran []string
				r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
					ran = append(ran, tap.FullName())
					if replace := given[tap.FullName()]; replace != nil {
						return replace(), nil
					}
					return nil, nil
				}
				steps := 0
				r.OnStep = func(Step) error { steps++; return nil }
				o := LoadOptions{Dtype: new(mlx.Float32), Requests: func(*Pipeline) []Request { return []Request{r} }, Overrides: given}
				p, err = Load(os.DirFS(dir), o)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				got, err := p.Generate(r)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got.Image.Pix, want.Image.Pix) {
					t.Error("another picture")
				}
				if steps != c.steps || got.Steps != c.steps {
					t.Errorf("%d steps, said to be %d, expected %d", steps, got.Steps, c.steps)
				}
				for _, name := range c.given {
					if n := len(slices.DeleteFunc(slices.Clone(ran), func(s string) bool { return s != name })); n != 1 {
						t.Errorf("%s passed the hook %d times", name, n)
					}
				}
				for _, name := range ran {
					for _, component := range c.unused {
						if strings.HasPrefix(name, component) {
							t.Errorf("%s ran", name)
						}
					}
				}

				// with one component less it cannot be loaded
				for _, component := range []string{"text_encoder", "tokenizer", "transformer", "scheduler"} {
					if slices.Contains(c.unused, component) {
						continue
					}
					aside := filepath.Join(t.TempDir(), component)
					if err := os.Rename(filepath.Join(dir, component), aside); err != nil {
						t.Fatal(err)
					}
					_, err := Load(os.DirFS(dir), o)
					if err == nil || !strings.Contains(err.Error(), component+"/") {
						t.Errorf("without %s: %v", component, err)
					}
					if err := os.Rename(aside, filepath.Join(dir, component)); err != nil {
						t.Fatal(err)
					}
				}
				// and another run needs what is not there
				if len(c.unused) > 0 {
					_, err := p.Generate(c.request)
					if !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "the model was loaded without its ") {
						t.Errorf("a run of its own: %v", err)
					}
				}
			})
		})
	}
}

// TestOverrideErrors overrides values by tensors that do not fit.
func TestOverrideErrors(t *testing.T) {
	zeros := func(d mlx.Dtype, shape ...int) func() *mlx.Array {
		return func() *mlx.Array { return mlx.Zeros(d, shape...) }
	}
	for name, c := range map[string]struct {
		value func() *mlx.Array
		err   string
	}{
		"prompt.embeds":    {zeros(mlx.Float16, 3, 8), "prompt.embeds has dtype float16, expected float32"},
		"negative.embeds":  {zeros(mlx.Float32, 1, 3, 8), "negative.embeds has shape [1 3 8], expected [-1 -1]"},
		"prompt.input_ids": {zeros(mlx.Int32, 1, 65), "prompt has 65 tokens"},
		"latents@1":        {zeros(mlx.Float32, 4, 4, 6), "latents@1 has shape [4 4 6], expected [1 4 4 6]"},
		"latents.init":     {zeros(mlx.Float32, 1, 4, 6, 4), "latents.init has shape [1 4 6 4], expected [1 4 4 6]"},
		"noise_pred@0":     {zeros(mlx.BFloat16, 1, 4, 4, 6), "noise_pred@0 has dtype bfloat16, expected float32"},
		"vae.decode.in":    {zeros(mlx.Float32, 1, 4, 4, 5), "vae.decode.in has shape [1 4 4 5], expected [1 4 4 6]"},
	} {
		err := mlx.Do(t.Context(), func() error {
			p := load(t, nil)
			_, err := p.Generate(Request{Prompt: "a red circle", Height: 16, Width: 24, Steps: 2, Guidance: 1, Seed: 5,
				MaxSequenceLength: 64, Overrides: hostValues{name: c.value}})
			return err
		})
		if !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: found %v, expected %q", name, err, c.err)
		}
	}
}

// TestOverriddenProcessor checks that a run whose prompt is encoded needs the image processor, and
// that a run with overridden embeddings does not.
func TestOverriddenProcessor(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/qwen-edit/model")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "processor")); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		r := Request{Prompt: "a red hat", Height: 32, Width: 32, Steps: 1, Guidance: 1, MaxSequenceLength: 64,
			References: []image.Image{image.NewGray(image.Rect(0, 0, 40, 40))}}
		open := func(given hostValues) (*Pipeline, error) {
			r.Overrides = given
			p, err := Load(os.DirFS(dir), LoadOptions{Requests: func(*Pipeline) []Request { return []Request{r} }, Overrides: given})
			if err == nil {
				t.Cleanup(p.Close)
			}
			return p, err
		}
		for _, name := range []string{"latents.init", "prompt.input_ids"} {
			if _, err := open(hostValues{name: func() *mlx.Array { panic(name) }}); err == nil || !strings.Contains(err.Error(),
				"missing: processor/") {
				t.Errorf("%s is given: error %v", name, err)
			}
		}
		p, err := open(hostValues{"prompt.embeds": func() *mlx.Array { return mlx.Zeros(mlx.Float32, 3, 16) }})
		if err != nil {
			t.Fatal(err)
		}
		r.Overrides = nil
		if _, err := p.Generate(r); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(),
			"the model was loaded without its processor") {
			t.Errorf("a run of its own: error %v", err)
		}
	})
}

// TestHostileLayers checks that indices of hidden states that no text encoder has are an error, and
// that they declare nothing if there is no text encoder.
func TestHostileLayers(t *testing.T) {
	const klein, kleinKey, krea, kreaKey = "flux2-klein", "text_encoder_out_layers", "krea-2", "text_encoder_select_layers"
	for _, test := range []struct{ model, key, layers string }{
		{klein, kleinKey, "[-1]"}, {klein, kleinKey, "[0, 1, 2]"}, {klein, kleinKey, "[1, 2, 100000]"},
		{klein, kleinKey, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"},
		{krea, kreaKey, "[-1, 0, 1]"}, {krea, kreaKey, "[1, 2, 100000]"}, {krea, kreaKey, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/"+test.model+"/model")); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, index.File)
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		before, after, _ := strings.Cut(string(data), `"`+test.key+`": [`)
		_, after, ok := strings.Cut(after, "]")
		if !ok {
			t.Fatalf("%s", data)
		}
		if err := os.WriteFile(name, []byte(before+`"`+test.key+`": `+test.layers+after), 0o666); err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			if _, err := Load(os.DirFS(dir), LoadOptions{}); !errors.Is(err, errs.ErrUnsupported) ||
				!strings.Contains(err.Error(), test.key) {
				t.Errorf("%s: error %v", test, err)
			}
			if err := os.RemoveAll(filepath.Join(dir, "text_encoder")); err != nil {
				t.Fatal(err)
			}
			given := hostValues{"prompt.embeds": func() *mlx.Array { panic("not yet") }}
			r := Request{Height: 32, Width: 32, Steps: 1, MaxSequenceLength: 8, Overrides: given}
			p, err := Load(os.DirFS(dir), LoadOptions{Requests: func(*Pipeline) []Request { return []Request{r} }, Overrides: given})
			if err != nil {
				t.Fatalf("%s, without a text encoder: %v", test, err)
			}
			for _, c := range p.Components() {
				declared, published := 0, 0
				switch e := c.Model.(type) {
				case *textenc.Qwen3:
					declared, published = len(e.Layers), 27
				case *textenc.Qwen3VL:
					declared, published = len(e.LanguageModel.Layers), 35
				}
				if declared > published {
					t.Errorf("%s, without a text encoder: %d layers are declared", test, declared)
				}
			}
			p.Close()
		})
	}
}
