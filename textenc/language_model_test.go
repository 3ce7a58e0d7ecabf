package textenc_test

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

// The models are those of testdata/make.py for which transformers has generated text.
var languageModels = []string{
	"qwen3-head", "qwen3-published", "qwen25vl-published", "qwen3vl-published", "qwen35-head", "ministral3-head", "mistral3-head",
}

// neverWritten are the ids of images and videos, which transformers' generate was told to leave out.
var neverWritten = []int{37, 38}

// allowed returns the tolerance of a model's logits. What the delta rule returns is normed, though it can be
// near zero: transformers itself is off by 4e-5 from its model in float64.
func allowed(folder string) float64 {
	if folder == "qwen35-head" {
		return 6e-5
	}
	return 5e-6
}

func openLanguageModel(t *testing.T, folder string, h how) *textenc.CausalLM {
	t.Helper()
	var m *textenc.CausalLM
	switch kind, _, _ := strings.Cut(folder, "-"); kind {
	case "qwen3":
		c := textenc.DefaultQwen3Config()
		config(t, folder, &c)
		m = textenc.NewQwen3ForCausalLM(c, nil, h.dtype)
	case "qwen25vl":
		c := textenc.DefaultQwen25VLConfig()
		config(t, folder, &c)
		m = textenc.NewQwen25VLForConditionalGeneration(c, true, h.dtype)
	case "qwen3vl":
		m = textenc.NewQwen3VLForConditionalGeneration(qwen3VLConfig(t, folder), nil, true, h.dtype)
	case "mistral3":
		c := textenc.DefaultMistral3Config()
		config(t, folder, &c)
		m = textenc.NewMistral3ForConditionalGeneration(c, nil, h.dtype)
	case "ministral3":
		c := textenc.DefaultMinistral3Config()
		config(t, folder, &c)
		m = textenc.NewMinistral3ForCausalLM(c, h.dtype)
	case "qwen35":
		c := textenc.DefaultQwen35Config()
		config(t, folder, &c)
		m = textenc.NewQwen35ForConditionalGeneration(c, true, h.dtype)
	}
	loadEncoder(t, folder, m, h, []string{"model."}, m.Unused())
	return m
}

// A written is a text of transformers.
type written struct {
	prompt, all []int32 // all has the new ids too
	images      []textenc.VisionInput
	logits      *mlx.Array
}

func (g golden) written(t *testing.T, folder, run string) (w written, ok bool) {
	if g[run+".prompt"] == nil {
		return w, false
	}
	w.prompt, w.logits = g[run+".prompt"].Int32s(), g[run+".logits"].ExpandDims(0)
	w.all = slices.Concat(w.prompt, g[run+".new"].Int32s())
	if numbers := g[run+".pictures"]; numbers != nil {
		p := openProcessor(t, folder)
		for _, i := range numbers.Int32s() {
			w.images = append(w.images, process(t, p, testImages()[i]))
		}
	}
	return w, true
}

func row(ids []int32) *mlx.Array { return mlx.FromInt32(ids, 1, len(ids)) }

// greedy returns the best id of each row of logits, as an array [B, 1].
func greedy(logits *mlx.Array) *mlx.Array {
	hidden := make([]float32, logits.Dim(1))
	for _, id := range neverWritten {
		hidden[id] = float32(math.Inf(-1))
	}
	return logits.Add(mlx.FromFloat32(hidden, 1, len(hidden))).Argmax(1).AsType(mlx.Int32)
}

// write adds ids to those in a cache greedily, of which next is the first.
func write(m *textenc.CausalLM, cache *textenc.Cache, next *mlx.Array, n int) (ids [][]int32) {
	for range n {
		next = mlx.Scope(func() *mlx.Array {
			ids = append(ids, next.Int32s())
			return greedy(m.Forward(next, nil, cache))
		})
	}
	return ids
}

func near(t *testing.T, what string, got, want *mlx.Array, allowed float64) {
	t.Helper()
	d := off(t, what, got, want)
	t.Logf("%s: off by %.2g", what, d)
	if !(d <= allowed) {
		t.Errorf("%s is off by %.2g, allowed %g", what, d, allowed)
	}
}

// TestLanguageModels compares logits and greedily generated ids with those of transformers: without a
// cache, with one, with the prompt in parts, and in a batch with another, longer prompt.
func TestLanguageModels(t *testing.T) {
	for _, folder := range languageModels {
		for _, run := range []string{"text", "seen"} {
			mlxtest.Do(t, func() {
				g := readGolden(t, folder+"/generated.safetensors")
				w, ok := g.written(t, folder, run)
				if !ok {
					return
				}
				t.Log(folder, run)
				m := openLanguageModel(t, folder, how{dtype: mlx.Float32})
				n := len(w.prompt)
				near(t, "without cache", m.Logits(row(w.all), w.images, nil), w.logits, allowed(folder))

				cache := m.NewCache(1, 0)
				defer cache.Close()
				first := m.Logits(row(w.prompt), w.images, cache)
				near(t, "prompt", first, w.logits.Slice(1, 0, n), allowed(folder))
				new := len(w.all) - n
				if run == "text" && g["seen.prompt"] != nil {
					new = 30 // all of them after images
				}
				ids := slices.Concat(write(m, cache, greedy(first.Slice(1, n-1, n).Squeeze(1)), new)...)
				mlxtest.Same(t, folder+", generated ids", ids, w.all[n:n+new])
				if cache.Len() != n+new {
					t.Errorf("%d tokens in the cache, expected %d", cache.Len(), n+new)
				}

				if got, want := cache.Bytes(), m.CacheBytes(n+new); got != want {
					t.Errorf("%s: the cache has %d bytes, expected %d", folder, got, want)
				}

				compiled := m.NewCache(1, 0)
				defer compiled.Close()
				compiled.Compile(mlx.Unfused)
				steps := []*mlx.Array{m.Logits(row(w.prompt), w.images, compiled)}
				for _, id := range w.all[n : n+new] {
					steps = append(steps, m.Logits(row([]int32{id}), nil, compiled))
				}
				near(t, "compiled steps", mlx.Concat(1, steps...), w.logits.Slice(1, 0, n+new), allowed(folder))
				mixed := m.NewCache(1, 0) // steps before and after several tokens at once
				defer mixed.Close()
				mixed.Compile(mlx.Unfused)
				steps = []*mlx.Array{m.Logits(row(w.prompt), w.images, mixed)}
				for at, next := n, 0; at < n+new; at = next {
					if next = at + 1; at == n+5 {
						next += 6
					}
					steps = append(steps, m.Logits(row(w.all[at:next]), nil, mixed))
				}
				near(t, "steps and passes", mlx.Concat(1, steps...), w.logits.Slice(1, 0, n+new), allowed(folder))
				if got, want := compiled.Bytes(), m.CacheBytes(n+new); got != want {
					t.Errorf("%s: the cache of compiled steps has %d bytes, expected %d", folder, got, want)
				}

				parts := m.NewCache(1, 300)
				defer parts.Close()
				var logits []*mlx.Array
				cut := 4 // before images
				logits = append(logits, m.Logits(row(w.all[:cut]), nil, parts), m.Logits(row(w.all[cut:n]), w.images, parts))
				for at := n; at < len(w.all); at += 67 {
					logits = append(logits, m.Logits(row(w.all[at:min(at+67, len(w.all))]), nil, parts))
				}
				near(t, "in parts", mlx.Concat(1, logits...), w.logits, allowed(folder))

				long := slices.Repeat(w.all[n:], 2)[:300] // more than a cache has room for at first
				grown := m.NewCache(1, 0)
				defer grown.Close()
				m.Forward(row(long[:250]), nil, grown)
				rest := m.Logits(row(long[250:]), nil, grown)
				near(t, "in a cache that grows", rest, m.Logits(row(long), nil, nil).Slice(1, 250, 300), allowed(folder))

				if folder == "qwen3-published" {
					return
				}
				const pad = 7
				longer := slices.Concat([]int32{1, 2, 3, 4, 5, 6, 7}, w.prompt)
				one := m.NewCache(1, 0)
				defer one.Close()
				want := write(m, one, greedy(m.Forward(row(longer), w.images, one)), 12)
				both := m.NewCache(2, 0)
				defer both.Close()
				both.Compile(mlx.Unfused)
				both.Pad([]int{pad, 0})
				batch := mlx.FromInt32(slices.Concat([]int32{37, 0, 0, 37, 39, 0, 0}, w.prompt, longer), 2, pad+n)
				var parted [][]int32
				if run == "text" { // padding that ends in the second part
					m.Forward(batch.Slice(1, 0, 5), nil, both)
					parted = write(m, both, greedy(m.Forward(batch.Slice(1, 5, pad+n), nil, both)), 12)
				} else {
					parted = write(m, both, greedy(m.Forward(batch, slices.Concat(w.images, w.images), both)), 12)
				}
				for i, ids := range parted {
					mlxtest.Same(t, folder+", ids of a batch", ids, []int32{w.all[n+i], want[i][0]})
				}
			})
		}
	}
}

// TestLanguageModelModules checks that every module has the name and the output of transformers' module.
func TestLanguageModelModules(t *testing.T) {
	for _, folder := range languageModels {
		mlxtest.Do(t, func() {
			g := readGolden(t, folder+"/generated.safetensors")
			if len(g.modules()) == 0 {
				return
			}
			run := "text"
			if g["seen.prompt"] != nil {
				run = "seen"
			}
			w, _ := g.written(t, folder, run)
			seen := map[string]bool{}
			points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
				name := tap.FullName()
				if g[name] == nil && strings.Contains(name, ":") {
					return nil, nil
				}
				if seen[name] = true; g[name] == nil {
					t.Errorf("%s: %s is not in transformers", folder, name)
				} else if d := off(t, name, tap.Output, g[name]); !(d <= allowed(folder)) {
					t.Errorf("%s: %s is off by %.2g", folder, name, d)
				}
				return nil, nil
			}}
			m := openLanguageModel(t, folder, how{dtype: mlx.Float32, points: points})
			cache := m.NewCache(1, 0)
			defer cache.Close()
			m.Logits(row(w.prompt), w.images, cache)
			names := slices.DeleteFunc(g.modules(), func(name string) bool {
				// Qwen3's and Mistral's, which are no modules here
				return name == "text_encoder.model.rotary_emb" || folder == "mistral3-head" && strings.HasSuffix(name, ".rotary_emb")
			})
			mlxtest.Same(t, folder, slices.Sorted(maps.Keys(seen)), names)
		})
	}
}

// TestLanguageModelFaults checks that mistakes that are easily made change the logits after the prompt by far
// more than TestLanguageModels allows.
func TestLanguageModelFaults(t *testing.T) {
	for fault, plant := range map[string]func(m *textenc.CausalLM, cache *textenc.Cache){
		"none":                            func(*textenc.CausalLM, *textenc.Cache) {},
		"no norm before the head":         nil, // a hook replaces it
		"positions one off after prefill": func(_ *textenc.CausalLM, cache *textenc.Cache) { cache.Displace(1) },
		"cache shifted by one":            func(_ *textenc.CausalLM, cache *textenc.Cache) { cache.Shift() },
		"decay squared": func(m *textenc.CausalLM, _ *textenc.Cache) {
			for _, p := range nn.Parameters(m) {
				if strings.HasSuffix(p.Name, ".A_log") {
					p.Array = p.Array.Plus(math.Ln2)
				}
			}
		},
	} {
		for _, folder := range []string{"qwen3-head", "qwen25vl-published", "qwen3vl-published", "qwen35-head", "ministral3-head"} {
			if fault == "decay squared" && folder != "qwen35-head" {
				continue
			}
			mlxtest.Do(t, func() {
				points := &hooks.Points{Step: -1}
				if plant == nil {
					points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
						if tap.Name == "text_encoder.model.norm" || tap.Name == "text_encoder.model.language_model.norm" {
							return tap.Inputs[0].Array, nil
						}
						return nil, nil
					}
				}
				g := readGolden(t, folder+"/generated.safetensors")
				w, _ := g.written(t, folder, "text")
				m := openLanguageModel(t, folder, how{dtype: mlx.Float32, points: points})
				cache := m.NewCache(1, 0)
				defer cache.Close()
				n := len(w.prompt)
				m.Forward(row(w.prompt), nil, cache)
				if plant != nil {
					plant(m, cache)
				}
				d := off(t, fault, m.Logits(row(w.all[n:n+8]), nil, cache), w.logits.Slice(1, n, n+8))
				t.Logf("%s, %s: off by %.2g", folder, fault, d)
				if found := d > 20*allowed(folder); found != (fault != "none") {
					t.Errorf("%s, %s: off by %.2g", folder, fault, d)
				}
			})
		}
	}
}

// BenchmarkDecode measures a token of a model of 12 layers with random weights, after 64 others.
func BenchmarkDecode(b *testing.B) {
	c := textenc.DefaultQwen3Config()
	c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 32000, 1024, 3072, 12
	c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim = 16, 8, 128
	for _, dtype := range []mlx.Dtype{mlx.Float32, mlx.BFloat16} {
		b.Run(dtype.String(), func(b *testing.B) {
			err := mlx.Do(b.Context(), func() error {
				m := textenc.NewQwen3ForCausalLM(c, nil, dtype)
				weights := checkpoint.F32
				if dtype == mlx.BFloat16 {
					weights = checkpoint.BF16
				}
				err := nn.Load(m, nn.RandomCheckpoint(m, weights), nn.LoadOptions{Name: "lm", Dtype: dtype, Random: true})
				if err != nil {
					return err
				}
				cache := m.NewCache(1, 0)
				defer cache.Close()
				next := greedy(m.Forward(mlx.Zeros(mlx.Int32, 1, 64), nil, cache))
				mlx.Eval(next)
				for b.Loop() {
					next = mlx.Scope(func() *mlx.Array { return greedy(m.Forward(next, nil, cache)) })
					mlx.Eval(next)
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// TestLanguageModelsInHalfPrecision checks that logits in 16 bits are float32, and near those in float32, with
// a cache too.
func TestLanguageModelsInHalfPrecision(t *testing.T) {
	for _, folder := range languageModels {
		for dtype, allowed := range map[mlx.Dtype]float64{mlx.BFloat16: 0.15, mlx.Float16: 0.02} {
			mlxtest.Do(t, func() {
				w, _ := readGolden(t, folder+"/generated.safetensors").written(t, folder, "text")
				m := openLanguageModel(t, folder, how{dtype: dtype})
				cache := m.NewCache(1, 0)
				defer cache.Close()
				n := len(w.prompt)
				got := []*mlx.Array{m.Logits(row(w.prompt), nil, cache)}
				for _, id := range w.all[n : n+3] {
					got = append(got, m.Logits(row([]int32{id}), nil, cache))
				}
				all := mlx.Concat(1, got...)
				near(t, folder+" in "+dtype.String(), all, w.logits.Slice(1, 0, n+3), allowed)
				if all.Dtype() != mlx.Float32 {
					t.Errorf("%s: logits are %v", folder, all)
				}
				if got, want := cache.Bytes(), m.CacheBytes(n+3); got != want {
					t.Errorf("%s in %v: the cache has %d bytes, expected %d", folder, dtype, got, want)
				}
			})
		}
	}
}

// A scaled is an adapter that multiplies.
type scaled float64

func (s scaled) Apply(_, y *mlx.Array) *mlx.Array { return y.Times(float64(s)) }

// TestLanguageModelAdapters checks that an adapter changes a layer as its baked weight does, also in compiled
// steps, and that a compiled step is not used while a hook looks.
func TestLanguageModelAdapters(t *testing.T) {
	mlxtest.Do(t, func() {
		var taps int
		points := &hooks.Points{Step: -1}
		m := openLanguageModel(t, "qwen3-head", how{dtype: mlx.Float32, points: points})
		w, _ := readGolden(t, "qwen3-head/generated.safetensors").written(t, "qwen3-head", "text")
		step := func() (logits *mlx.Array, made int) {
			cache := m.NewCache(1, 0)
			defer cache.Close()
			cache.Compile(mlx.Unfused)
			m.Forward(row(w.prompt), nil, cache)
			m.Forward(row(w.all[:1]), nil, cache)
			before := mlx.Made()
			logits = m.Forward(row(w.all[:1]), nil, cache)
			return logits, mlx.Made() - before
		}
		plain, made := step()
		// the inputs, the logits, and what each layer changes in the cache
		if most := 6 + len(m.Model.(*textenc.Qwen3).Layers); made > most {
			t.Errorf("a compiled step makes %d arrays, expected at most %d", made, most)
		}
		up := m.Model.(*textenc.Qwen3).UpProj()
		up.Adapters = []nn.Adapter{scaled(2)}
		adapted, _ := step()
		up.Adapters = nil
		up.Weight.Array = up.Weight.Array.Times(2)
		baked, _ := step()
		near(t, "an adapter", adapted, baked, 1e-6)
		if off(t, "an adapter", adapted, plain) < 1e-3 {
			t.Error("the adapter changes nothing")
		}
		points.Func = func(hooks.Tap) (*mlx.Array, error) { taps++; return nil, nil }
		seen, _ := step()
		near(t, "while a hook looks", seen, baked, 1e-6)
		if taps == 0 {
			t.Error("the hook saw nothing")
		}
	})
}
