package parity

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/textenc"
)

// A writer is a language model and a text that the reference has written with it.
type writer struct {
	*models.LanguageModel
	prompt, all, before []int32 // all has the new ids too; before is what the longer text of the batch begins with
	images              []textenc.VisionInput
}

// The component of a language model here, and in the reference's runs.
const ours, theirs = "language_model", "text_encoder"

// loadLanguage loads the language model of the run, and reads its ids.
func (r *replay) loadLanguage() error {
	m, err := models.LoadLanguageModel(r.fsys, models.LoadOptions{Device: r.Device, Dtype: r.Dtype, Quantize: r.Quantize})
	if err != nil {
		return err
	}
	r.language, r.model = &writer{LanguageModel: m}, m
	r.pipeline, r.passNames, r.untapped = m.Pipeline(), passNames{r.ref, false}, untappedOfAll()
	r.ref.FirstStep = -1 // there are no steps
	l := r.language
	for name, ids := range map[string]*[]int32{"prompt.input_ids": &l.prompt, "written.input_ids": &l.all, "longer.input_ids": &l.before} {
		a := r.ref.Array(name)
		if a == nil && ids == &l.before {
			continue
		}
		if a == nil {
			return fmt.Errorf("run %s: %w: it has no %s", r.run, ErrRun, name)
		}
		*ids = a.Int32s()
	}
	l.all = slices.Concat(l.prompt, l.all)
	pixels, grid := r.ref.Array("vision.pixel_values"), r.ref.Array("vision.grid_thw")
	if pixels == nil || grid == nil {
		return nil
	}
	values, width := pixels.Floats(), pixels.Dim(1)
	for g := range slices.Chunk(grid.Int32s(), 3) {
		n := int(g[0]*g[1]*g[2]) * width
		if n > len(values) || g[0] != 1 {
			return fmt.Errorf("run %s: %w: vision.pixel_values has too few rows for vision.grid_thw", r.run, ErrRun)
		}
		l.images = append(l.images, textenc.VisionInput{Pixels: values[:n], Height: int(g[1]), Width: int(g[2])})
		values = values[n:]
	}
	return nil
}

// write compares a pass over all ids without a cache, module by module, and from the start also what is
// computed with a cache: the ids that the model writes after the reference's, and the logits after every id.
func (r *replay) write(hook hooks.Func) error {
	l := r.language
	for _, name := range []string{"prompt.input_ids", "longer.input_ids", "vision.pixel_values", "vision.grid_thw",
		"written.input_ids", "logits", "logits.longer"} {
		r.visited[name] = true
	}
	l.Observe(func(tap hooks.Tap) (*mlx.Array, error) {
		tap.Name = theirs + strings.TrimPrefix(tap.Name, ours)
		return hook(tap)
	})
	compare := func(name, reference string, x *mlx.Array) {
		r.meet(reference, hooks.Tap{Name: name, Step: -1, Output: x})
	}
	logits := l.Model().Logits(row(l.all), l.images, nil)
	l.Observe(nil)
	if r.pass.reading != report.Free {
		return nil
	}
	r.order += 1 << 20 // after the modules, which other passes count with their inputs
	compare("logits", "logits", logits.Squeeze(0))
	cached, best := l.cached(r.ref.Never)
	compare("logits.cached", "logits", cached)
	compare("written.input_ids", "written.input_ids", best)
	compare("logits.parts", "logits", l.parts())
	if l.before == nil {
		return nil
	}
	batch, longer := l.batch()
	compare("logits.batch", "logits", batch)
	compare("logits.longer", "logits.longer", longer)
	return nil
}

func row(ids []int32) *mlx.Array { return mlx.FromInt32(ids, 1, len(ids)) }

// cached returns the logits [T, vocabulary] of the prompt and then of token by token, and the ids that are
// most likely after the prompt and after each of the reference's but the last.
func (l *writer) cached(never []int) (logits, best *mlx.Array) {
	m, n := l.Model(), len(l.prompt)
	cache := m.NewCache(1, 0)
	defer cache.Close()
	all := []*mlx.Array{m.Logits(row(l.prompt), l.images, cache)}
	for i := n; i < len(l.all); i++ {
		all = append(all, m.Logits(row(l.all[i:i+1]), nil, cache))
		mlx.Eval(all[len(all)-1])
	}
	logits = mlx.Concat(1, all...).Squeeze(0)
	hidden := make([]float32, logits.Dim(1))
	for _, id := range never {
		hidden[id] = float32(math.Inf(-1))
	}
	written := logits.Slice(0, n-1, len(l.all)-1)
	return logits, written.Add(mlx.FromFloat32(hidden, 1, len(hidden))).Argmax(1).Reshape(len(l.all) - n).AsType(mlx.Int32)
}

// parts returns the logits of all ids in several calls, of which the second has the images.
func (l *writer) parts() *mlx.Array {
	m, n := l.Model(), len(l.prompt)
	cache := m.NewCache(1, len(l.all)/2)
	defer cache.Close()
	cut := min(4, n-1)
	all := []*mlx.Array{m.Logits(row(l.all[:cut]), nil, cache), m.Logits(row(l.all[cut:n]), l.images, cache)}
	for ids := range slices.Chunk(l.all[n:], 67) {
		all = append(all, m.Logits(row(ids), nil, cache))
	}
	mlx.Eval(all...)
	return mlx.Concat(1, all...).Squeeze(0)
}

// batch returns the logits of all ids in a batch with a longer text, and those of that text.
func (l *writer) batch() (logits, longer *mlx.Array) {
	m, pad := l.Model(), len(l.before)
	cache := m.NewCache(2, 0)
	defer cache.Close()
	cache.Pad([]int{pad, 0})
	ids := mlx.FromInt32(slices.Concat(l.before, l.all, l.before, l.all), 2, pad+len(l.all))
	both := m.Logits(ids, slices.Concat(l.images, l.images), cache)
	mlx.Eval(both)
	return both.Slice(0, 0, 1).Squeeze(0).Slice(0, pad, pad+len(l.all)), both.Slice(0, 1, 2).Squeeze(0)
}
