package nn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// model has every kind of field that a model may have.
type model struct {
	nn.Module
	ConvIn *nn.Conv2d                `w:"conv_in"`
	Blocks []*block                  `w:"blocks"`
	Heads  map[string]*nn.Sequential `w:"heads"`
	Norm   nn.RMSNorm                `w:"norm"`
	Scale  nn.Param                  `w:"scale"`
	Absent *nn.Linear                `w:"absent"`
	Unset  nn.Param                  `w:"unset"`

	Other *nn.Linear // no tag: not part of the checkpoint
}

type block struct {
	nn.Module
	Q   *nn.Linear `w:"attn.to_q"` // a module inside one that has no struct here
	Out []nn.Layer `w:"to_out"`
}

func newModel() *model {
	m := &model{
		ConvIn: nn.NewConv2d(2, 3, 3, 1, 1),
		Heads: map[string]*nn.Sequential{
			"1-1": nn.NewSequential(&nn.SiLU{}, nn.NewLinear(4, 2, true)),
			"0-x": nn.NewSequential(nn.NewLinear(4, 4, false)),
		},
		Norm:  *nn.NewRMSNorm(4, 1e-6),
		Scale: nn.NewParam(1, 4),
		Other: nn.NewLinear(100, 100, true),
	}
	for range 2 {
		m.Blocks = append(m.Blocks, &block{Q: nn.NewLinear(4, 4, false), Out: []nn.Layer{nn.NewLinear(4, 4, true), &nn.SiLU{}}})
	}
	return m
}

// tensors is a checkpoint of model.
func tensors() []tensor {
	return []tensor{
		f32("conv_in.weight", 3, 2, 3, 3), f32("conv_in.bias", 3),
		f32("blocks.0.attn.to_q.weight", 4, 4), f32("blocks.0.to_out.0.weight", 4, 4), f32("blocks.0.to_out.0.bias", 4),
		f32("blocks.1.attn.to_q.weight", 4, 4), f32("blocks.1.to_out.0.weight", 4, 4), f32("blocks.1.to_out.0.bias", 4),
		f32("heads.0-x.0.weight", 4, 4), f32("heads.1-1.1.weight", 2, 4), f32("heads.1-1.1.bias", 2),
		f32("norm.weight", 4), f32("scale", 1, 4),
	}
}

// params is what was loaded, by name.
func params(m *model) map[string]*mlx.Array {
	out := map[string]*mlx.Array{
		"conv_in.weight": m.ConvIn.Weight.Array, "conv_in.bias": m.ConvIn.Bias.Array, "norm.weight": m.Norm.Weight.Array,
		"scale":              m.Scale.Array,
		"heads.0-x.0.weight": m.Heads["0-x"].Layers[0].(*nn.Linear).Weight.Array,
		"heads.1-1.1.weight": m.Heads["1-1"].Layers[1].(*nn.Linear).Weight.Array,
		"heads.1-1.1.bias":   m.Heads["1-1"].Layers[1].(*nn.Linear).Bias.Array,
	}
	for i, name := range []string{"blocks.0.", "blocks.1."} {
		out[name+"attn.to_q.weight"] = m.Blocks[i].Q.Weight.Array
		out[name+"to_out.0.weight"] = m.Blocks[i].Out[0].(*nn.Linear).Weight.Array
		out[name+"to_out.0.bias"] = m.Blocks[i].Out[0].(*nn.Linear).Bias.Array
	}
	return out
}

// checkLoaded compares every parameter with its tensor.
func checkLoaded(t *testing.T, m *model, want []tensor) {
	t.Helper()
	loaded := params(m)
	if len(loaded) != len(want) {
		t.Fatalf("%d parameters for %d tensors", len(loaded), len(want))
	}
	for _, w := range want {
		a := loaded[w.name]
		if a == nil {
			t.Fatalf("%s was not loaded", w.name)
		}
		if w.name == "conv_in.weight" { // [out, in, k, k] became [out, k, k, in]
			mlxtest.Same(t, w.name, a.Shape(), []int{3, 3, 3, 2})
			a = a.Transpose(0, 3, 1, 2)
		}
		mlxtest.Same(t, w.name, a.Shape(), w.shape)
		mlxtest.Same(t, w.name, a.AsType(mlx.Float32).Floats(), w.values)
	}
}

func TestLoad(t *testing.T) {
	ck := open(t, save(t, tensors()...))
	m := newModel()
	var progress []int64
	mlxtest.Do(t, func() {
		err := nn.Load(m, ck, nn.LoadOptions{Name: "transformer", Dtype: mlx.Float32, Progress: func(done, total int64) {
			progress = append(progress, done, total)
		}})
		if err != nil {
			t.Fatal(err)
		}
	})
	mlxtest.Do(t, func() { checkLoaded(t, m, tensors()) }) // in another job: they are kept
	total := int64(0)
	for _, w := range tensors() {
		total += int64(4 * len(w.values))
	}
	if n := len(progress); n != 2*len(tensors()) || progress[n-2] != total || progress[n-1] != total ||
		progress[0] <= 0 || progress[0] >= total {
		t.Errorf("found progress %v, expected %d steps up to %d", progress, len(tensors()), total)
	}
	for i := 2; i < len(progress); i += 2 {
		if progress[i] <= progress[i-2] {
			t.Errorf("progress goes back: %v", progress)
		}
	}
	paths := map[*nn.Module]string{
		&m.Module: "transformer", &m.ConvIn.Module: "transformer.conv_in", &m.Norm.Module: "transformer.norm",
		&m.Blocks[1].Module:                           "transformer.blocks.1",
		&m.Blocks[0].Q.Module:                         "transformer.blocks.0.attn.to_q",
		&m.Blocks[1].Out[0].(*nn.Linear).Module:       "transformer.blocks.1.to_out.0",
		&m.Blocks[1].Out[1].(*nn.SiLU).Module:         "transformer.blocks.1.to_out.1",
		&m.Heads["1-1"].Module:                        "transformer.heads.1-1",
		&m.Heads["1-1"].Layers[1].(*nn.Linear).Module: "transformer.heads.1-1.1",
		&m.Heads["0-x"].Layers[0].(*nn.Linear).Module: "transformer.heads.0-x.0",
		&m.Other.Module:                               "",
	}
	for module, want := range paths {
		if module.Path() != want {
			t.Errorf("found path %q, expected %q", module.Path(), want)
		}
	}
	if m.Unset.Array != nil || m.Absent != nil || m.Other.Weight.Array != nil {
		t.Error("something was loaded that the model does not have")
	}
}

// What a checkpoint and a model do not agree on is told all at once, and
// nothing is loaded.
func TestLoadMismatch(t *testing.T) {
	var changed []tensor
	for _, w := range tensors() {
		switch w.name {
		case "blocks.1.attn.to_q.weight", "scale": // missing
		case "conv_in.weight":
			changed = append(changed, f32("conv_in.weight", 3, 3, 3, 2))
		case "norm.weight":
			changed = append(changed, f32("norm.weight", 4, 1).as("U8"))
		case "blocks.0.to_out.0.bias":
			changed = append(changed, w.as("I32"))
		default:
			changed = append(changed, w)
		}
	}
	var unexpected []string
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	for _, name := range []string{"absent.weight", "blocks.2.norm", "blocks.2.to_out.0.bias", "blocks.3.norm", "other.bias", "unset"} {
		changed = append(changed, f32(name, 7, 2))
		unexpected = append(unexpected, name+" [7 2] in "+file)
	}
	saveAs(t, file, changed...)
	m := newModel()
	var err error
	mlxtest.Do(t, func() {
		err = nn.Load(m, open(t, dir), nn.LoadOptions{Name: "transformer", Dtype: mlx.Float32})
	})
	var e *nn.MismatchError
	if !errors.As(err, &e) {
		t.Fatalf("found %v, expected a MismatchError", err)
	}
	mlxtest.Same(t, "missing", texts(e.Missing), []string{"blocks.1.attn.to_q.weight, expected [4 4]", "scale, expected [1 4]"})
	mlxtest.Same(t, "unexpected", texts(e.Unexpected), unexpected)
	mlxtest.Same(t, "misshapen", texts(e.Misshapen), []string{
		"conv_in.weight, expected [3 2 3 3], found [3 3 3 2] in " + file,
		"norm.weight, expected [4], found [4 1] in " + file})
	mlxtest.Same(t, "mistyped", texts(e.Mistyped), []string{
		"blocks.0.to_out.0.bias, expected F32, F16 or BF16, found I32 in " + file,
		"norm.weight, expected F32, F16 or BF16, found U8 in " + file})
	text := err.Error()
	mlxtest.Contains(t, text, dir, "transformer")
	if lines := strings.Count(text, "\n\t"); lines != 12 {
		t.Errorf("%d lines in %q, expected one for each of 12", lines, text)
	}
	for _, group := range [][]nn.Misfit{e.Missing, e.Unexpected, e.Misshapen, e.Mistyped} {
		mlxtest.Contains(t, text, texts(group)...)
	}
	for name, a := range params(m) {
		if a != nil {
			t.Errorf("%s was loaded all the same", name)
		}
	}
}

func texts(misfits []nn.Misfit) (out []string) {
	for _, m := range misfits {
		out = append(out, m.String())
	}
	return out
}

// TestParameters checks where the parameters of a model are said to be, and
// that Match finds their tensors without loading them.
func TestParameters(t *testing.T) {
	m := newModel()
	want := map[string]string{ // name: field, transform and stored shape
		"conv_in.weight":            "ConvIn.Weight oihw [3 2 3 3]",
		"conv_in.bias":              "ConvIn.Bias  [3]",
		"blocks.0.attn.to_q.weight": "Blocks[0].Q.Weight  [4 4]",
		"blocks.0.to_out.0.weight":  "Blocks[0].Out[0].Weight  [4 4]",
		"blocks.0.to_out.0.bias":    "Blocks[0].Out[0].Bias  [4]",
		"blocks.1.attn.to_q.weight": "Blocks[1].Q.Weight  [4 4]",
		"blocks.1.to_out.0.weight":  "Blocks[1].Out[0].Weight  [4 4]",
		"blocks.1.to_out.0.bias":    "Blocks[1].Out[0].Bias  [4]",
		"heads.0-x.0.weight":        `Heads["0-x"].Layers[0].Weight  [4 4]`,
		"heads.1-1.1.weight":        `Heads["1-1"].Layers[1].Weight  [2 4]`,
		"heads.1-1.1.bias":          `Heads["1-1"].Layers[1].Bias  [2]`,
		"norm.weight":               "Norm.Weight  [4]",
		"scale":                     "Scale  [1 4]",
	}
	parameters := nn.Parameters(m)
	if len(parameters) != len(want) {
		t.Errorf("%d parameters, expected %d", len(parameters), len(want))
	}
	found, mismatch := nn.Match(m, open(t, save(t, tensors()[1:]...)), nn.LoadOptions{})
	if mismatch == nil || len(mismatch.Missing) != 1 || mismatch.Missing[0].Name != "conv_in.weight" {
		t.Errorf("found %v, expected conv_in.weight to be missing", mismatch)
	}
	for i, p := range parameters {
		if got := fmt.Sprintf("%s %s %v", p.Field, p.Transform(), p.Stored()); got != want[p.Name] {
			t.Errorf("%s: found %q, expected %q", p.Name, got, want[p.Name])
		}
		if p.Array != nil {
			t.Errorf("%s was loaded", p.Name)
		}
		if p.Name != "conv_in.weight" && found[i].Name != p.Name {
			t.Errorf("%s: found the tensor %q", p.Name, found[i].Name)
		}
	}
	if _, mismatch := nn.Match(m, open(t, save(t, tensors()...)), nn.LoadOptions{}); mismatch != nil {
		t.Error(mismatch)
	}
}

// TestWatch sees every way in which parameters are used.
func TestWatch(t *testing.T) {
	linear, unused, embedding := nn.NewLinear(2, 3, true), nn.NewLinear(2, 3, true), nn.NewEmbedding(3, 2)
	mlxtest.Do(t, func() {
		for _, p := range slices.Concat(nn.Parameters(linear), nn.Parameters(unused), nn.Parameters(embedding)) {
			p.Array = mlx.Zeros(mlx.BFloat16, p.Stored()...)
		}
		used := map[*mlx.Array]bool{}
		stop := nn.Watch(func(a *mlx.Array) { used[a] = true })
		linear.Forward(embedding.Forward([]int32{1}, mlx.Float32))
		stop()
		unused.Forward(mlx.Zeros(mlx.Float32, 1, 2))
		if len(used) != 3 || !used[linear.Weight.Array] || !used[linear.Bias.Array] || !used[embedding.Weight.Array] {
			t.Errorf("%d arrays were used, expected the linear layer's two and the embedding's", len(used))
		}
	})
}

func TestLoadPrefixesAndIgnore(t *testing.T) {
	type small struct {
		nn.Module
		A *nn.Linear `w:"a"`
		B nn.Param   `w:"b"`
	}
	load := func(options nn.LoadOptions, file ...tensor) (*small, error) {
		m := &small{A: nn.NewLinear(2, 1, false), B: nn.NewParam(3)}
		options.Name, options.Dtype = "m", mlx.Float32
		var err error
		mlxtest.Do(t, func() { err = nn.Load(m, open(t, save(t, file...)), options) })
		return m, err
	}
	a, b := f32("a.weight", 1, 2), f32("b", 3)
	named := func(w tensor, name string) tensor { w.name = name; return w }

	t.Run("prefixes", func(t *testing.T) {
		options := nn.LoadOptions{Prefixes: []string{"model.", "model.language_model."}}
		m, err := load(options, named(a, "model.a.weight"), named(b, "model.language_model.b"))
		if err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			mlxtest.Same(t, "a", m.A.Weight.Floats(), a.values)
			mlxtest.Same(t, "b", m.B.Floats(), b.values)
		})
		if m.A.Path() != "m.a" { // a prefix is the file's, not the module's
			t.Errorf("found path %q", m.A.Path())
		}
	})
	t.Run("no prefix is first", func(t *testing.T) {
		_, err := load(nn.LoadOptions{Prefixes: []string{"model."}}, a, b, named(f32("bb", 3), "model.b"))
		var e *nn.MismatchError
		if !errors.As(err, &e) || len(e.Unexpected) != 1 || e.Unexpected[0].Name != "model.b" {
			t.Errorf("found %v, expected model.b to be unexpected", err)
		}
	})
	t.Run("prefix not asked for", func(t *testing.T) {
		_, err := load(nn.LoadOptions{}, named(a, "model.a.weight"), b)
		var e *nn.MismatchError
		if !errors.As(err, &e) || len(e.Unexpected) != 1 || len(e.Missing) != 1 {
			t.Errorf("found %v, expected one missing and one unexpected", err)
		}
	})
	t.Run("misshapen under a prefix", func(t *testing.T) {
		_, err := load(nn.LoadOptions{Prefixes: []string{"model."}}, named(f32("x", 2, 1), "model.a.weight"), b)
		mlxtest.Contains(t, err.Error(), "wrong shape: model.a.weight, expected [1 2], found [2 1]")
	})
	t.Run("another name", func(t *testing.T) {
		type tied struct {
			nn.Module
			A *nn.Embedding `w:"in.a"`
		}
		for name, c := range map[string]struct {
			file []tensor
			want string
		}{
			"its own":            {[]tensor{named(a, "in.a.weight")}, "in.a.weight"},
			"the other":          {[]tensor{named(a, "shared.weight")}, "shared.weight"},
			"the other prefixed": {[]tensor{named(a, "model.shared.weight")}, "model.shared.weight"},
			"both":               {[]tensor{named(f32("x", 3, 3), "shared.weight"), named(a, "model.in.a.weight")}, "model.in.a.weight"},
		} {
			m := &tied{A: nn.NewEmbedding(1, 2)}
			m.A.Weight = m.A.Weight.Or("shared.weight")
			found, err := nn.Match(m, open(t, save(t, c.file...)),
				nn.LoadOptions{Prefixes: []string{"model."}, Ignore: []string{"shared.weight"}})
			if err != nil || found[0].Name != c.want {
				t.Errorf("%s: found %v, %v, expected %s", name, found, err, c.want)
			}
		}
		m := &tied{A: nn.NewEmbedding(1, 2)}
		m.A.Weight = m.A.Weight.Or("shared.weight")
		_, err := nn.Match(m, open(t, save(t, named(f32("x", 3, 3), "shared.weight"))), nn.LoadOptions{})
		if err == nil || len(err.Misshapen) != 1 || err.Misshapen[0].Name != "shared.weight" {
			t.Errorf("found %v, expected a wrong shape of shared.weight", err)
		}
	})
	t.Run("ignore", func(t *testing.T) {
		options := nn.LoadOptions{Prefixes: []string{"model."}, Ignore: []string{"lm_head.*", "layers.*.inv_freq"}}
		rest := []tensor{f32("lm_head.weight", 2), f32("model.layers.3.inv_freq", 2), f32("layers.3.inv_freq", 1)}
		if _, err := load(options, append([]tensor{a, b}, rest...)...); err != nil {
			t.Error(err)
		}
		_, err := load(options, a, b, f32("lm_head", 2), f32("x.lm_head.weight", 3))
		var e *nn.MismatchError
		if !errors.As(err, &e) || len(e.Unexpected) != 2 {
			t.Errorf("found %v, expected two unexpected tensors", err)
		}
	})
}

// Small weights stay small, large ones become as small as what is computed in.
func TestLoadDtypes(t *testing.T) {
	for _, c := range []struct {
		stored        string
		compute, want mlx.Dtype
	}{
		{"F32", mlx.Float32, mlx.Float32}, {"F32", mlx.BFloat16, mlx.BFloat16}, {"F32", mlx.Float16, mlx.Float16},
		{"BF16", mlx.Float32, mlx.BFloat16}, {"BF16", mlx.BFloat16, mlx.BFloat16}, {"BF16", mlx.Float16, mlx.Float16},
		{"F16", mlx.Float32, mlx.Float16}, {"F16", mlx.Float16, mlx.Float16}, {"F16", mlx.BFloat16, mlx.BFloat16},
	} {
		t.Run(c.stored+" computed in "+c.compute.String(), func(t *testing.T) {
			w := f32("weight", 4, 4).as(c.stored)
			ck := open(t, save(t, w))
			mlxtest.Do(t, func() {
				d := nn.NewLinear(4, 4, false)
				if err := nn.Load(d, ck, nn.LoadOptions{Name: "d", Dtype: c.compute}); err != nil {
					t.Fatal(err)
				}
				if d.Weight.Dtype() != c.want {
					t.Errorf("found %v, expected %v", d.Weight.Dtype(), c.want)
				}
				mlxtest.Same(t, "values", d.Weight.Floats(), w.values)
				x := mlx.Full(1, c.compute, 1, 4)
				if y := d.Forward(x); y.Dtype() != c.compute {
					t.Errorf("computed %v, expected %v", y.Dtype(), c.compute)
				}
			})
		})
	}
}

// A float32 that becomes bfloat16 is rounded, not cut.
func TestLoadRounds(t *testing.T) {
	ck := open(t, save(t, tensor{name: "weight", dtype: "F32", shape: []int{1, 2}, values: []float32{1 + 3.0/256, -1 - 1.1/256}}))
	mlxtest.Do(t, func() {
		d := nn.NewLinear(2, 1, false)
		if err := nn.Load(d, ck, nn.LoadOptions{Name: "d", Dtype: mlx.BFloat16}); err != nil {
			t.Fatal(err)
		}
		mlxtest.Same(t, "values", d.Weight.Floats(), []float32{1 + 4.0/256, -1 - 2.0/256})
	})
}

// The shards of an index are one checkpoint.
func TestLoadShards(t *testing.T) {
	dir := t.TempDir()
	all := tensors()
	names := []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
	saveAs(t, filepath.Join(dir, names[0]), all[:5]...)
	saveAs(t, filepath.Join(dir, names[1]), all[5:]...)
	var index []string
	for i, w := range all {
		shard := names[0]
		if i >= 5 {
			shard = names[1]
		}
		index = append(index, `"`+w.name+`":"`+shard+`"`)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{`+strings.Join(index, ",")+`}}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	ck := open(t, dir)
	mlxtest.Do(t, func() {
		m := newModel()
		if err := nn.Load(m, ck, nn.LoadOptions{Name: "transformer", Dtype: mlx.Float32}); err != nil {
			t.Fatal(err)
		}
		checkLoaded(t, m, all)
	})
}

// The file that was validated is the one that is loaded, and one that was
// changed since is an error that names file and tensor.
func TestLoadOfChangedFile(t *testing.T) {
	all := tensors()
	load := func(t *testing.T, change func(path string, size int64)) (string, error) {
		dir := save(t, all...)
		path := filepath.Join(dir, "model.safetensors")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		ck := open(t, dir)
		change(path, info.Size())
		m := newModel()
		err = mlx.Do(context.Background(), func() error {
			if err := nn.Load(m, ck, nn.LoadOptions{Name: "transformer", Dtype: mlx.Float32}); err != nil {
				return err
			}
			checkLoaded(t, m, all)
			return nil
		})
		return path, err
	}
	truncate := func(t *testing.T, path string, size int64) {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("removed", func(t *testing.T) {
		if _, err := load(t, func(path string, _ int64) { os.Remove(path) }); err != nil {
			t.Error(err)
		}
	})
	t.Run("replaced", func(t *testing.T) {
		_, err := load(t, func(path string, _ int64) {
			os.Remove(path)
			saveAs(t, path, f32("something.else", 2))
		})
		if err != nil {
			t.Error(err)
		}
	})
	last := all[len(all)-1].name
	for name, cut := range map[string]func(size int64) int64{
		"by a byte":             func(size int64) int64 { return size - 1 },
		"by a tensor":           func(size int64) int64 { return size - 16 },
		"to the header":         func(size int64) int64 { return size - 4*(54+3+3*16+2*4+16+8+2+4+4+4) },
		"within the last value": func(size int64) int64 { return size - 3 },
	} {
		t.Run("truncated "+name, func(t *testing.T) {
			path, err := load(t, func(path string, size int64) { truncate(t, path, cut(size)) })
			if err == nil {
				t.Fatal("no error")
			}
			mlxtest.Contains(t, err.Error(), path)
			// mlx-c itself refuses a file that is shorter than its header says
			if !strings.Contains(err.Error(), "tensor "+last) && !strings.Contains(err.Error(), "Tensor '") {
				t.Errorf("%q names no tensor", err)
			}
		})
	}
	t.Run("truncated to nothing", func(t *testing.T) {
		path, err := load(t, func(path string, _ int64) { truncate(t, path, 0) })
		if err == nil {
			t.Fatal("no error")
		}
		mlxtest.Contains(t, err.Error(), path)
	})
}

// The file is cut short while it is read: MLX reads lazily, and says nothing when a small read
// fails.
func TestLoadOfFileCutShortMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		ahead int64
	}{
		"small": {100, 0}, "beyond 32 MiB": {9 << 20, 0}, "small, read ahead": {100, 500}, "beyond 32 MiB, read ahead": {9 << 20, 40 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			names := []string{"a", "b", "c"}
			var tensors []tensor
			for _, name := range names {
				tensors = append(tensors, tensor{name: name + ".weight", dtype: "F32", shape: []int{c.n, 1}, values: make([]float32, c.n)})
			}
			dir := save(t, tensors...)
			path := filepath.Join(dir, "model.safetensors")
			m := &struct {
				nn.Module
				A *nn.Linear `w:"a"`
				B *nn.Linear `w:"b"`
				C *nn.Linear `w:"c"`
			}{}
			for _, l := range []**nn.Linear{&m.A, &m.B, &m.C} {
				*l = nn.NewLinear(1, c.n, false)
			}
			ck := open(t, dir)
			var loaded int
			err := mlx.Do(context.Background(), func() error {
				return nn.Load(m, ck, nn.LoadOptions{Name: "m", Dtype: mlx.Float32, ReadAhead: c.ahead, Progress: func(int64, int64) {
					if loaded++; loaded == 1 {
						if err := os.Truncate(path, 600); err != nil {
							t.Error(err)
						}
					}
				}})
			})
			if err == nil || loaded != 1 {
				t.Fatalf("found %v after %d tensors, expected an error after 1", err, loaded)
			}
			mlxtest.Contains(t, err.Error(), path+": tensor ")
		})
	}
}

func TestLoadCancelled(t *testing.T) {
	ck := open(t, save(t, tensors()...))
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("ctrl-c")
	loaded := 0
	err := mlx.Do(ctx, func() error {
		return nn.Load(newModel(), ck, nn.LoadOptions{Name: "m", Dtype: mlx.Float32, Progress: func(int64, int64) {
			if loaded++; loaded == 3 {
				cancel(cause)
			}
		}})
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("found %v, expected it to wrap %v", err, cause)
	}
	if loaded > 4 { // at most the tensor that was being read
		t.Errorf("%d tensors were loaded, expected at most 4", loaded)
	}
}

// A loaded model is all that loading leaves in memory, and what is read ahead is bounded.
func TestLoadMemory(t *testing.T) {
	const params, n = 8, 1 << 20
	var tensors []tensor
	for i := range params {
		tensors = append(tensors, tensor{name: fmt.Sprintf("layers.%d.w", i), dtype: "F32", shape: []int{n}, values: make([]float32, n)})
	}
	dir := save(t, tensors...)
	for _, ahead := range []int{0, 2, params} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			type layer struct {
				nn.Module
				W nn.Param `w:"w"`
			}
			m := &struct {
				nn.Module
				Layers []*layer `w:"layers"`
			}{}
			for range params {
				m.Layers = append(m.Layers, &layer{W: nn.NewParam(n)})
			}
			var before, after, peak int
			mlxtest.Do(t, func() {
				before = mlx.ActiveMemory()
				mlx.ResetPeakMemory()
				o := nn.LoadOptions{Name: "m", Dtype: mlx.BFloat16, ReadAhead: int64(ahead) * 4 * n}
				if err := nn.Load(m, open(t, dir), o); err != nil {
					t.Fatal(err)
				}
				// in the same job, between which the collector's frees would be counted
				peak, after = mlx.PeakMemory()-before, mlx.ActiveMemory()-before
				for _, l := range m.Layers {
					l.W.Free()
				}
			})
			if after != params*2*n {
				t.Errorf("%d bytes live after loading, expected %d", after, params*2*n)
			}
			// a tensor that is read takes 4 bytes a number, and 2 more when it is converted
			if limit := params*2*n + (ahead+1)*4*n + 3*n; peak > limit {
				t.Errorf("%d bytes at the peak, expected at most %d", peak, limit)
			}
		})
	}
}

// A model with a field that cannot be part of one is a bug that says where.
func TestLoadOfBadModel(t *testing.T) {
	ck := open(t, save(t, f32("a", 2)))
	m := &struct {
		nn.Module
		Dims []int `w:"dims"`
	}{Dims: []int{1}}
	defer func() {
		p := recover()
		if p == nil {
			t.Fatal("no panic")
		}
		mlxtest.Contains(t, p.(string), "dims.0", "int")
	}()
	mlx.Do(context.Background(), func() error { return nn.Load(m, ck, nn.LoadOptions{Name: "m"}) })
}

// TestLoadOfFileWithHole checks that a file of which a part was never written is an error.
func TestLoadOfFileWithHole(t *testing.T) {
	const n = 1024
	values := make([]float32, n*n)
	for i := range values[:n*n/2+n/2] {
		values[i] = float32(i%7) - 3.5
	}
	ck := open(t, save(t, tensor{name: "a.weight", dtype: "F32", shape: []int{n, n}, values: values}))
	m := struct {
		A *nn.Linear `w:"a"`
	}{nn.NewLinear(n, n, false)}
	err := mlx.Do(t.Context(), func() error { return nn.Load(&m, ck, nn.LoadOptions{Name: "x", Dtype: mlx.Float32}) })
	if !errors.Is(err, checkpoint.ErrDamaged) {
		t.Errorf("%v, expected a damaged file", err)
	}
}
