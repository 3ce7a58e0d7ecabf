package models

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/models/promptcache"
	"github.com/gomflux/gomflux/models/tuning"
)

// diskFolder is a model folder that is opened with a cache of prompt embeddings.
type diskFolder struct {
	*testing.T
	model, cache string
	options      LoadOptions
}

// open loads the model for some requests.
func (d *diskFolder) open(requests ...Request) *Pipeline {
	d.Helper()
	o := d.options
	if d.cache != "" {
		o.PromptCache = promptcache.New(d.cache, promptcache.DefaultSize, func(s string) { d.Error(s) })
	}
	if len(requests) > 0 {
		o.Requests = func(*Pipeline) []Request { return requests }
	}
	fsys, err := checkpoint.OpenFolder(d.model)
	if err != nil {
		d.Fatal(err)
	}
	p, err := Load(fsys, o)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(p.Close)
	return p
}

// generate generates an image, and checks whether the embeddings come from disk.
func (d *diskFolder) generate(p *Pipeline, r Request, cached bool) []uint8 {
	d.Helper()
	result, err := p.Generate(r)
	if err != nil {
		d.Fatal(err)
	}
	if result.PromptCached != cached {
		d.Errorf("prompt embeddings from disk: %v, expected %v", result.PromptCached, cached)
	}
	return result.Image.Pix
}

// loadedEncoders lists the text encoders in memory.
func loadedEncoders(p *Pipeline) (names []string) {
	for _, dir := range sorted(p.loadables) {
		if p.isTextEncoder(dir) && p.loadables[dir].parameters() > 0 {
			names = append(names, dir)
		}
	}
	return names
}

// TestEmbeddingsOnDisk generates the images of all dumps without a cache, with an empty one, and
// with what that run has stored. The images are the same, and the last run has no text encoder.
func TestEmbeddingsOnDisk(t *testing.T) {
	all, err := filepath.Glob("testdata/*/dump/settings.json")
	if err != nil || len(all) < 6 {
		t.Fatalf("%d goldens, %v", len(all), err)
	}
	for _, file := range randtest.Some(4, all) {
		t.Run(filepath.Base(filepath.Dir(filepath.Dir(file))), func(t *testing.T) {
			g := readGolden(t, file)
			r := g.request(t)
			d := &diskFolder{T: t, model: filepath.Join("testdata", g.Model)}
			if g.Compute == "bfloat16" {
				d.options.Dtype = new(mlx.BFloat16)
			}
			mlxtest.Do(t, func() {
				p := d.open(r)
				want := d.generate(p, r, false)
				encoders := loadedEncoders(p)
				d.cache = filepath.Join(t.TempDir(), "prompts")
				p = d.open(r)
				if found := loadedEncoders(p); !slices.Equal(found, encoders) {
					t.Errorf("text encoders %q are loaded for a new prompt, expected %q", found, encoders)
				}
				first := d.generate(p, r, false)
				p = d.open(r)
				second := d.generate(p, r, true)
				if found := loadedEncoders(p); len(found) > 0 || len(encoders) == 0 {
					t.Errorf("text encoders %q are loaded for a known prompt, without a cache %q", found, encoders)
				}
				for _, text := range p.family.PromptEncodings(r.References) {
					if l := p.tokenizers[text.Tokenizer]; l != nil && (l.t != nil) != text.NeedsIDs {
						t.Errorf("%s is loaded for a known prompt: %t, expected %t", text.Tokenizer, l.t != nil, text.NeedsIDs)
					}
				}
				if !bytes.Equal(first, want) || !bytes.Equal(second, want) {
					t.Errorf("the same image with an empty cache: %v, from the cache: %v",
						bytes.Equal(first, want), bytes.Equal(second, want))
				}
			})
		})
	}
}

// TestEmbeddingsOnDemand checks text encoders that are loaded after Load: for a pipeline without
// requests, for other prompts than those of the requests, and for embeddings that have gone.
func TestEmbeddingsOnDemand(t *testing.T) {
	known := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 48, Seed: 1}
	other := known
	other.Prompt = "a blue hat"
	for _, folder := range []string{"flux1-schnell-ordinary", "zimage-ordinary"} {
		t.Run(folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				plain := &diskFolder{T: t, model: "testdata/" + folder + "/model", options: LoadOptions{Dtype: new(mlx.Float32)}}
				p := plain.open()
				encoders := loadedEncoders(p)
				want := [][]uint8{plain.generate(p, known, false), plain.generate(p, other, false)}
				check := func(p *Pipeline, r Request, cached bool, loaded []string) {
					t.Helper()
					index := 0
					if r.Prompt == other.Prompt {
						index = 1
					}
					got := plain.generate(p, r, cached)
					if r.Hook == nil && !bytes.Equal(got, want[index]) || !sameImage(got, want[index]) {
						t.Errorf("%s: another image", r.Prompt)
					}
					if found := loadedEncoders(p); !slices.Equal(found, loaded) {
						t.Errorf("%s: text encoders %q are in memory, expected %q", r.Prompt, found, loaded)
					}
				}
				d := &diskFolder{T: t, model: plain.model, cache: filepath.Join(t.TempDir(), "prompts"), options: plain.options}
				p = d.open()
				if found := loadedEncoders(p); len(found) > 0 {
					t.Errorf("text encoders %q are loaded without requests", found)
				}
				check(p, known, false, encoders)
				p = d.open()
				check(p, known, true, nil)
				check(p, other, false, encoders)

				p = d.open(known)
				if err := os.RemoveAll(d.cache); err != nil {
					t.Fatal(err)
				}
				check(p, known, false, encoders)
				check(d.open(known), known, true, nil)

				hooked := known // which sees all modules
				taps := 0
				hooked.Hook = func(hooks.Tap) (*mlx.Array, error) { taps++; return nil, nil }
				p = d.open(hooked)
				if found := loadedEncoders(p); !slices.Equal(found, encoders) {
					t.Errorf("text encoders %q are loaded for a run with a hook, expected %q", found, encoders)
				}
				check(p, hooked, false, encoders)
				if taps == 0 {
					t.Error("the hook has seen nothing")
				}
			})
		})
	}
}

// TestEmbeddingsMemory loads a model for a known prompt where there is no room for its text encoder.
// The estimate is lower, and for another prompt only one component is in memory at a time.
func TestEmbeddingsMemory(t *testing.T) {
	known := Request{Prompt: "a red hat", Height: 64, Width: 64, Steps: 1, MaxSequenceLength: 48, Seed: 1}
	other := known
	other.Prompt = "a blue hat"
	mlxtest.Do(t, func() {
		d := &diskFolder{T: t, model: modeltest.Wide(t, "flux2-klein-base"), cache: filepath.Join(t.TempDir(), "prompts")}
		p := d.open(known)
		all := estimated(t, p, other)
		want := d.generate(p, known, false)
		wantOther := d.generate(p, other, false)
		if err := os.RemoveAll(d.cache); err != nil {
			t.Fatal(err)
		}
		d.generate(d.open(known), known, false)

		d.options.memory = all.Peak() - 1
		p = d.open(known)
		if p.residency.lowRAM {
			t.Error("one component at a time, although the text encoder is not needed")
		}
		less := estimated(t, p, known)
		if _, ok := less.Weights["text_encoder"]; ok || less.Encode != 0 || less.Peak() >= all.Peak() {
			t.Errorf("%d bytes without the text encoder, %d with it", less.Peak(), all.Peak())
		}
		if !bytes.Equal(d.generate(p, known, true), want) {
			t.Error("another image for the known prompt")
		}
		if !bytes.Equal(d.generate(p, other, false), wantOther) {
			t.Error("another image for the other prompt")
		}
		if !p.residency.lowRAM {
			t.Error("all components are in memory together, for which there is no room")
		}
		if found := loadedEncoders(p); len(found) > 0 {
			t.Errorf("text encoders %q are in memory next to the transformer", found)
		}
	})
}

// TestEmbeddingsTokens compares what a run says about the tokens of a prompt that is cut, before its
// embeddings are in the cache and after that, when no tokenizer is loaded.
func TestEmbeddingsTokens(t *testing.T) {
	r := Request{Prompt: strings.Repeat("a blue hat, ", 30) + "ä", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 32, Seed: 1}
	for _, folder := range []string{"flux1-dev-small", "zimage-small", "qwen-image-small"} {
		d := &diskFolder{T: t, model: "testdata/" + folder + "/model", cache: filepath.Join(t.TempDir(), "prompts")}
		mlxtest.Do(t, func() {
			var told []string
			for range 2 {
				p := d.open(r)
				run, err := p.Prepare(r, 1)
				if err != nil {
					t.Fatal(err)
				}
				prompt, cut := run.Tokens()
				told = append(told, fmt.Sprintf("%d %d %+v", prompt, cut, run.Cuts()))
				d.generate(p, r, len(told) == 2)
			}
			if told[0] != told[1] || !strings.Contains(told[0], "hat") {
				t.Errorf("%s: %s with a tokenizer, %s without it", folder, told[0], told[1])
			}
		})
	}
}

// notANumber is a family whose text encoder computes NaN.
type notANumber struct{ family.Pipeline }

func (n notANumber) PromptEncodings(references []image.Image) []family.PromptEncoding {
	texts := n.Pipeline.PromptEncodings(references)
	encode := texts[0].Encode
	texts[0].Encode = func(ids []int32) *mlx.Array { return encode(ids).Times(math.NaN()) }
	return texts
}

// TestEmbeddingsNotFinite checks that embeddings with NaN are not stored.
func TestEmbeddingsNotFinite(t *testing.T) {
	r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 48, Seed: 1}
	mlxtest.Do(t, func() {
		d := &diskFolder{T: t, model: ordinary, cache: filepath.Join(t.TempDir(), "prompts")}
		p := d.open(r)
		p.family = notANumber{p.family}
		if _, err := p.Generate(r); err == nil {
			t.Error("NaN became an image")
		}
		if names, _ := os.ReadDir(d.cache); len(names) > 0 {
			t.Errorf("NaN is stored: %v", names)
		}
	})
}

// keysOf returns the keys of a request's prompt and negative prompt, for each text encoder.
func keysOf(t *testing.T, d *diskFolder, r Request) (keys []string) {
	t.Helper()
	p := d.open(r)
	if p.disk == nil {
		t.Fatal("the pipeline has no cache")
	}
	run, err := p.Prepare(r, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, prompt := range run.prompts {
		for _, encoding := range p.family.PromptEncodings(r.References) {
			keys = append(keys, string(run.embeddingsKey(&encoding, prompt)))
		}
	}
	return keys
}

// rewrite writes the first file of a model that matches a pattern again with one byte changed, and
// restores its modification time.
func rewrite(t *testing.T, d *diskFolder, pattern string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(d.model, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no files %s, %v", pattern, err)
	}
	path := names[0]
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".safetensors") {
		data[len(data)-1] ^= 1
	} else {
		data = bytes.Replace(data, []byte("\n "), []byte(" \n"), 1)
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// writeEncoderLoRA writes a LoRA for the first query of the CLIP of flux1-dev-small, with elements of
// a value.
func writeEncoderLoRA(t *testing.T, path string, value float32) {
	t.Helper()
	writeLoRA(t, path, "text_encoder.text_model.encoder.layers.0.self_attn.q_proj", 20, 20, value)
}

// writeLoRA writes a LoRA for a linear layer, with elements of a value.
func writeLoRA(t *testing.T, path, layer string, in, out int, value float32) {
	t.Helper()
	var list []*checkpoint.Array
	for part, shape := range map[string][]int{"A": {1, in}, "B": {out, 1}} {
		x, err := checkpoint.FromFloat32(layer+".lora_"+part+".weight", shape, slices.Repeat([]float32{value}, shape[0]*shape[1]))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	if err := checkpoint.WriteFile(path, list, nil); err != nil {
		t.Fatal(err)
	}
}

// TestEmbeddingsKey changes everything that embeddings depend on, one after the other. Each change
// changes the key of the text encoders that it concerns, and no other.
func TestEmbeddingsKey(t *testing.T) {
	dir := t.TempDir()
	adapter, weaker := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")
	writeEncoderLoRA(t, adapter, 0.5)
	writeEncoderLoRA(t, weaker, 0.25)
	forTransformer := filepath.Join(dir, "c.safetensors")
	if err := modeltest.WriteLoRA(forTransformer, "testdata/flux1-dev-small/model", 1); err != nil {
		t.Fatal(err)
	}
	with := func(specs ...lora.Spec) func(*testing.T, *diskFolder, *Request) {
		return func(_ *testing.T, d *diskFolder, _ *Request) { d.options.LoRAs = specs }
	}
	quantized := func(name string, group int) func(*testing.T, *diskFolder, *Request) {
		return func(t *testing.T, d *diskFolder, _ *Request) {
			q, err := component.ParseQuantization(name, group)
			if err != nil {
				t.Fatal(err)
			}
			d.options.Quantize = q
		}
	}
	changed := func(name string) func(*testing.T, *diskFolder, *Request) {
		return func(t *testing.T, d *diskFolder, _ *Request) { rewrite(t, d, name) }
	}
	const clip, t5, both, neither = "clip", "t5", "both", "neither"
	tests := []struct {
		name    string
		changes string
		change  func(*testing.T, *diskFolder, *Request)
	}{
		{"nothing", neither, func(*testing.T, *diskFolder, *Request) {}},
		{"seed, size and steps", neither, func(_ *testing.T, _ *diskFolder, r *Request) { r.Seed, r.Height, r.Steps = 9, 64, 3 }},
		{"prompt", both, func(_ *testing.T, _ *diskFolder, r *Request) { r.Prompt = "a blue hat" }},
		{"length", t5, func(_ *testing.T, _ *diskFolder, r *Request) { r.MaxSequenceLength = 32 }},
		{"dtype", both, func(_ *testing.T, d *diskFolder, _ *Request) {
			d.options.Dtype = new(mlx.BFloat16)
			if mlx.CurrentDevice().ComputeDtype() == mlx.BFloat16 {
				d.options.Dtype = new(mlx.Float32)
			}
		}},
		{"8 bits", both, quantized("8", 0)},
		{"a group", both, quantized("8", 32)},
		{"a LoRA", clip, with(lora.Spec{Path: adapter, Scale: 1})},
		{"its scale", clip, with(lora.Spec{Path: adapter, Scale: 0.5})},
		{"another LoRA", clip, with(lora.Spec{Path: weaker, Scale: 1})},
		{"two LoRAs", clip, with(lora.Spec{Path: adapter, Scale: 1}, lora.Spec{Path: weaker, Scale: 1})},
		{"two LoRAs the other way round", clip, with(lora.Spec{Path: weaker, Scale: 1}, lora.Spec{Path: adapter, Scale: 1})},
		{"a LoRA for the transformer", neither, with(lora.Spec{Path: forTransformer, Scale: 1})},
		{"a LoRA at run time", both, func(_ *testing.T, d *diskFolder, _ *Request) {
			d.options.LoRAs, d.options.RuntimeLoRA = []lora.Spec{{Path: adapter, Scale: 1}}, true
		}},
		{"weights of CLIP", clip, changed("text_encoder/*.safetensors")},
		{"weights of T5", t5, changed("text_encoder_2/*.safetensors")},
		{"weights of the transformer", neither, changed("transformer/*.safetensors")},
		{"weights of the autoencoder", neither, changed("vae/*.safetensors")},
		{"tokenizer of CLIP", clip, changed("tokenizer/tokenizer_config.json")},
		{"tokenizer of T5", t5, changed("tokenizer_2/tokenizer_config.json")},
		{"config of CLIP", both, changed("text_encoder/config.json")},
		{"config of the transformer", both, changed("transformer/config.json")},
		{"model_index.json", both, changed("model_index.json")},
		{"a tuned profile", both, func(t *testing.T, _ *diskFolder, _ *Request) {
			if err := tuning.Use(mlx.CurrentDevice(), tuning.Settings{Without: []string{"host_norms"}}); err != nil {
				t.Fatal(err)
			}
		}},
		{"environment", both, func(t *testing.T, _ *diskFolder, _ *Request) { t.Setenv(mlx.EnvKernels, "0") }},
	}
	model := modeltest.Copy(t, "testdata/flux1-dev-small/model") // whose files no test of another process changes
	before := map[string]string{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				d := &diskFolder{T: t, model: model, cache: filepath.Join(t.TempDir(), "prompts"), options: LoadOptions{headersOnly: true}}
				r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 48}
				old := keysOf(t, d, r)
				test.change(t, d, &r)
				keys := keysOf(t, d, r)
				if err := tuning.Use(mlx.CurrentDevice(), tuning.Settings{}); err != nil {
					t.Fatal(err)
				}
				for i, encoder := range []string{clip, t5} {
					want := test.changes == both || test.changes == encoder
					if (keys[i] != old[i]) != want {
						t.Errorf("the key of %s changes: %v, expected %v", encoder, !want, want)
					}
					if other, ok := before[keys[i]]; ok && want {
						t.Errorf("the same key as with %s", other)
					} else if want {
						before[keys[i]] = test.name
					}
				}
			})
		})
	}
}

// TestEmbeddingsKeyImages checks that the images of an edit are in the key where a text encoder sees
// them.
func TestEmbeddingsKeyImages(t *testing.T) {
	a, b := coloured(80, 100), coloured(80, 100)
	b.Pix[4*1000] ^= 1
	for folder, sees := range map[string]bool{"qwen-edit-plus": true, "flux2-klein": false} {
		t.Run(folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				d := &diskFolder{T: t, model: "testdata/" + folder + "/model", cache: t.TempDir(), options: LoadOptions{headersOnly: true}}
				keys := map[string]bool{}
				for _, images := range [][]image.Image{{a}, {b}, {a, b}, {b, a}, {a}} {
					r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 200, References: images}
					keys[keysOf(t, d, r)[0]] = true
				}
				want := 1
				if sees {
					want = 4
				}
				if len(keys) != want {
					t.Errorf("%d keys, expected %d", len(keys), want)
				}
			})
		})
	}
}

// TestEmbeddingsKeyFields changes each field of a key, those of the machine too.
func TestEmbeddingsKeyFields(t *testing.T) {
	text := func(k embeddingsKey) string {
		data, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	seen := map[string]string{text(embeddingsKey{}): "nothing"}
	var each func(name string, root *embeddingsKey, v reflect.Value)
	each = func(name string, root *embeddingsKey, v reflect.Value) {
		for i := range v.NumField() {
			field, name := v.Field(i), name+"."+v.Type().Field(i).Name
			switch field.Kind() {
			case reflect.Struct:
				each(name, root, field)
				continue
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int:
				field.SetInt(7)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			case reflect.Pointer:
				field.Set(reflect.New(field.Type().Elem()))
			default:
				t.Fatalf("%s: no test for %v", name, field.Kind())
			}
			if other, ok := seen[text(*root)]; ok {
				t.Errorf("%s: the same key as for %s", name, other)
			}
			seen[text(*root)] = name
			field.SetZero()
		}
	}
	var k embeddingsKey
	each("key", &k, reflect.ValueOf(&k).Elem())
	if len(seen) < 20 {
		t.Errorf("only %d fields: %v", len(seen), fmt.Sprint(seen))
	}
}
