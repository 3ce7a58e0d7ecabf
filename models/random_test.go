package models

import (
	"context"
	"errors"
	"image"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/errs"
)

// configs returns the configs of a golden's model, without weights and tokenizers.
func configs(t *testing.T, golden string) fs.FS {
	t.Helper()
	folder, files := os.DirFS("testdata/"+golden+"/model"), fstest.MapFS{}
	err := fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".json" ||
			strings.Contains(path.Dir(name), "tokenizer") && path.Base(name) != "preprocessor_config.json" {
			return err
		}
		text, err := fs.ReadFile(folder, name)
		files[name] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// references returns reference images.
func references(n int) (images []image.Image) {
	for range n {
		images = append(images, image.NewRGBA(image.Rect(0, 0, 80, 64)))
	}
	return images
}

// TestRandomModels runs a model of every class with random weights: the tokens that its transformer
// gets, the same image again, and with components that are drawn again.
func TestRandomModels(t *testing.T) {
	const length, limit = 20, 48 // tokens of a prompt, and the most
	for _, c := range randtest.Some(2, modeltest.Models) {
		t.Run(c.Name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				r := Request{
					Prompt: "a", Height: 64, Width: 64, Steps: 2, Guidance: c.Guidance, MaxSequenceLength: limit,
					References: references(c.References),
				}
				generate := func(prompt string, low bool) *Result {
					p, err := Load(configs(t, c.Name), LoadOptions{
						Random: &Random{Dtype: checkpoint.BF16, PromptTokens: length}, LowRAM: low,
						Requests: func(p *Pipeline) []Request {
							r.Inpaint = p.LeastInpaint(references(1)[0])
							return []Request{r}
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					defer p.Close()
					if least := p.LeastReferences(); c.References < least {
						t.Errorf("takes at least %d reference images", least)
					}
					again := r
					again.Prompt = prompt
					result, err := p.Generate(again)
					if err != nil {
						t.Fatal(err)
					}
					return result
				}
				first := generate("a", false)
				tokens := max(length+c.References*c.Seen, c.Rows)
				if c.Padded {
					tokens = limit
				}
				if first.PromptTokens != tokens {
					t.Errorf("%d tokens of the prompt, expected %d", first.PromptTokens, tokens)
				}
				if first.Compiled || (first.References > 0) != (c.References > 0) || first.References > first.Encode {
					t.Errorf("compiled %v, references in %v of %v", first.Compiled, first.References, first.Encode)
				}
				if low := generate("a", true); string(low.Image.Pix) != string(first.Image.Pix) {
					t.Error("another image with low RAM")
				}
				if other := generate("b", false); string(other.Image.Pix) == string(first.Image.Pix) {
					t.Error("the same image for another prompt")
				}
			})
		})
	}
}

// TestRandomRefused: runs of random weights that do not fit, and prompts that are too long.
func TestRandomRefused(t *testing.T) {
	load := func(golden string, tokens int, memory int64) error {
		return mlx.Do(context.Background(), func() error {
			p, err := Load(configs(t, golden), LoadOptions{
				Random: &Random{Dtype: checkpoint.BF16, PromptTokens: tokens}, memory: memory,
				Requests: func(p *Pipeline) []Request {
					r := p.defaultRequest()
					r.Height, r.Width = 64, 64
					return []Request{r}
				},
				Warn: func(message string) { t.Errorf("warning %q", message) },
			})
			if err == nil {
				p.Close()
			}
			return err
		})
	}
	if err := load("flux2-klein", 512, 1<<30); err != nil {
		t.Error(err)
	}
	err := load("flux2-klein", 512, 1<<10)
	if !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "an image of 64x64 in float32 needs about ") ||
		!strings.HasSuffix(err.Error(), " are free; neither quantized weights nor a smaller image would fit") {
		t.Errorf("without memory: %v", err)
	}
	err = load("flux2-klein", 513, 1<<30)
	if !errors.Is(err, errs.ErrRequest) || err.Error() != "a prompt of 513 tokens: the model takes at most 512" {
		t.Errorf("with too many tokens: %v", err)
	}
	// the reference cuts what CLIP does not see, and Qwen-Image-Edit takes any number
	if err := load("flux1-schnell-ordinary", 200, 1<<30); err != nil {
		t.Error(err)
	}
}

// TestPublishedRuns prepares a run of every published model with random weights, and compares the
// operations of a step at the default size, with a short prompt, with what was counted before.
func TestPublishedRuns(t *testing.T) {
	want := map[string]float64{ // TFLOP, of both passes with guidance
		"z-image-turbo": 55.1, "z-image": 110.2, "flux1-schnell": 69.5, "flux1-dev": 74.4, "flux1-fill-dev": 74.4,
		"flux2-klein-4b": 34.8,
		"flux2-klein-9b": 75.5, "qwen-image": 137.4,
	}
	for _, preset := range catalog.Presets {
		s, err := catalog.FindConfigs(preset.Name)
		if err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			p, err := Load(s.FS, LoadOptions{
				Defaults: s.Defaults, Random: &Random{Dtype: checkpoint.BF16, PromptTokens: 32}, headersOnly: true,
			})
			if err != nil {
				t.Fatalf("%s: %v", preset.Name, err)
			}
			defer p.Close()
			r := p.defaultRequest()
			r.References, r.Inpaint = references(p.LeastReferences()), p.LeastInpaint(references(1)[0])
			run, err := p.Prepare(r, 1)
			if err != nil {
				t.Fatalf("%s: %v", preset.Name, err)
			}
			encodings := p.family.PromptEncodings(r.References)
			rows := len(run.prompts[0].tokens[len(encodings)-1].IDs)
			if !encodings[len(encodings)-1].Padded {
				rows, _ = run.Tokens()
			}
			flops, ok := run.StepFLOPs(rows)
			if expected := want[preset.Name]; !ok || expected > 0 && math.Abs(flops/1e12-expected) > 0.06 {
				t.Errorf("%s: %.2f TFLOP in a step, expected %.1f", preset.Name, flops/1e12, expected)
			}
		})
	}
}

// TestStepFLOPs: a step has two passes where the family says that guidance needs them, and a model
// with a KV cache of its reference images has no count.
func TestStepFLOPs(t *testing.T) {
	for _, c := range []struct {
		golden     string
		off, on    float64 // values of guidance
		passes     float64 // with the latter
		references int
	}{
		{"zimage-ordinary", 0, 1, 2, 0},
		{"flux1-dev-small", 1, 3.5, 1, 0}, // an input of the transformer
		{"flux2-klein", 1, 1, 1, 2},
		{"flux2-klein-base", 1, 4, 2, 0},
		{"flux2-klein-kv", 1, 1, 1, 0},
		{"qwen-image-ordinary", 1, 4, 2, 0},
		{"qwen-edit-plus", 1, 4, 2, 2},
		{"krea-2-raw", 0, 3, 2, 0},
	} {
		mlxtest.Do(t, func() {
			p, err := Load(os.DirFS("testdata/"+c.golden+"/model"), LoadOptions{headersOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			run := func(guidance float64, references []image.Image) *Run {
				r := p.defaultRequest()
				r.Height, r.Width, r.Guidance, r.References = 64, 48, guidance, references
				run, err := p.Prepare(r, 1)
				if err != nil {
					t.Fatal(err)
				}
				return run
			}
			off, ok := run(c.off, references(c.references)).StepFLOPs(20)
			on, alsoOK := run(c.on, references(c.references)).StepFLOPs(20)
			if !ok || !alsoOK || off <= 0 || on != c.passes*off {
				t.Errorf("%s: %g FLOPs with guidance %g and %g with %g", c.golden, off, c.off, on, c.on)
			}
			if c.golden == "flux2-klein-kv" {
				if n, ok := run(1, references(1)).StepFLOPs(20); ok {
					t.Errorf("%s: %g FLOPs with a KV cache", c.golden, n)
				}
			}
		})
	}
}
