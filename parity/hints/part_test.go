package hints

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A world has the reference's tensors of a model.
type world map[string]*mlx.Array

const (
	bigTokens, bigWidth = 4128, 128
	bigHeads, bigDim    = 8, 128
)

// lower makes tensors large that are quick to search.
func lower(t *testing.T) {
	most, part := maxValues, partValues
	t.Cleanup(func() { maxValues, partValues = most, part })
	maxValues, partValues = 1<<17, 1<<13
}

func random(seed uint64, shape ...int) *mlx.Array {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return mlx.FromFloat32(mlxtest.Random(seed, n), shape...)
}

// ask explains ours for a tensor of the world.
func (w world) ask(t *testing.T, name string, ours *mlx.Array) (hint, limits string) {
	t.Helper()
	n, err := hooks.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	q := Question{Name: n, Ours: ours, Reference: w[name], Tensor: func(n hooks.Name) *mlx.Array { return w[n.String()] }}
	for name := range w {
		q.Names = append(q.Names, name)
	}
	slices.Sort(q.Names)
	found, limits := Explain(q)
	var keys []string
	for _, h := range found {
		keys = append(keys, h.Key)
		if want := "only indices 4096 to 4099 of the 4128 along axis 1 differ"; h.Key == "one axis" && !strings.Contains(h.Text, want) {
			t.Errorf("%s: %s, expected %s", name, h.Text, want)
		}
	}
	return strings.Join(keys, ", "), limits
}

// TestPart has mistakes in tensors of which a part is searched: the one with the error, and the
// same of every tensor that the reference's is computed from.
func TestPart(t *testing.T) {
	lower(t)
	mlxtest.Do(t, func() {
		const layer = "transformer.layers.0"
		x := random(1, 1, bigTokens, bigWidth)
		m := random(2, 1, 4*bigWidth).Split(4, 1)
		normed := x.RMSNorm(nil, 1e-5)
		y := random(3, 1, bigTokens, bigWidth)
		w := world{
			layer + "@0:in.0": x, layer + ".norm@0:in.0": x, layer + ".norm@0": normed,
			layer + ".adaLN_modulation@0": mlx.Concat(1, m...), layer + ".attention@0:in.0": normed.Mul(m[0].Plus(1)),
			layer + ".attention@0": y, layer + ".act@0:in.0": x,
			layer + ".act@0": x.SiLU(), layer + "@0": x.Add(y.Mul(m[1].Tanh())),
		}
		rows := func(x *mlx.Array, from, to int, f func(*mlx.Array) *mlx.Array) *mlx.Array {
			return mlx.Concat(1, x.Slice(1, 0, from), f(x.Slice(1, from, to)), x.Slice(1, to, bigTokens))
		}
		for _, c := range []struct {
			name string
			ours *mlx.Array
			hint string
		}{
			{layer + ".norm@0", x.LayerNorm(nil, nil, 1e-5), "norm kind"},
			{layer + ".norm@0", x.RMSNorm(nil, 1e-2), "norm eps"},
			{layer + ".norm@0", x, "does nothing"},
			{layer + ".act@0", x.GELU(), "activation"},
			{layer + ".attention@0:in.0", normed.Mul(m[2].Plus(1)), "modulation swapped"},
			{layer + ".attention@0:in.0", normed, "modulation missing"},
			{layer + "@0", x.Add(y), "gate missing"},
			{layer + "@0", x.Add(y.Mul(m[1])), "gate"},
			{layer + "@0", y.Mul(m[1].Tanh()), "missing term"},
			{layer + ".attention@0", y.Times(3), "ratio"},
			{layer + ".attention@0", y.Add(random(4, bigWidth)), "bias"},
			{layer + ".attention@0", y.AsType(mlx.BFloat16).AsType(mlx.Float32), "lost upcast"},
			{layer + ".attention@0", mlx.Concat(1, y.Slice(1, 32, bigTokens), y.Slice(1, 0, 32)), "parts in another order"},
			{layer + ".attention@0", y.Reshape(1, 4, -1, bigWidth).Transpose(0, 2, 1, 3).Reshape(1, bigTokens, bigWidth), "interleaved"},
			{layer + ".attention@0", y.Reshape(1, bigTokens, 2, -1).Transpose(0, 1, 3, 2).Reshape(1, bigTokens, bigWidth), "interleaved"},
			{layer + ".attention@0", y.Transpose(0, 2, 1).Reshape(1, bigTokens, bigWidth), "layout"},
			// the error is in the last tokens alone, or in one value of four million
			{layer + ".attention@0", rows(y, 4096, 4100, func(x *mlx.Array) *mlx.Array { return x.Square() }), "one axis"},
			{layer + ".attention@0", rows(y, 4127, 4128, func(x *mlx.Array) *mlx.Array { return x.Times(math.NaN()) }), "not finite"},
		} {
			hint, limits := w.ask(t, c.name, c.ours)
			if hint != c.hint {
				t.Errorf("%s: hint %q (%s), expected %q", c.name, hint, limits, c.hint)
			}
			if c.hint != "not finite" && !strings.HasPrefix(limits, "looked for in a part, indices ") {
				t.Errorf("%s, %s: looked for hints in %q", c.name, c.hint, limits)
			}
		}
	})
}

// TestPartOfAttention has mistakes in the attention of 1008 tokens, of which some heads are
// computed anew.
func TestPartOfAttention(t *testing.T) {
	lower(t)
	mlxtest.Do(t, func() {
		const bigTokens, bigWidth = 1008, bigHeads * bigDim
		const module = "transformer.layers.0.attention"
		q, k, v := random(1, 1, bigTokens, bigHeads, bigDim), random(2, 1, bigTokens, bigHeads, bigDim),
			random(3, 1, bigTokens, bigWidth)
		positions := make([][]int, bigTokens)
		for i := range positions {
			positions[i] = []int{i}
		}
		rope := nn.NewRope(positions, []int{bigDim}, 256)
		table := mlx.Concat(2, rope.Cos.ExpandDims(2), rope.Sin.ExpandDims(2)).ExpandDims(0)
		turned := func(x *mlx.Array, f func(*mlx.Array) *mlx.Array) *mlx.Array { return f(headsFirst(x)) }
		result := func(f func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
			return nn.MergeHeads(mlx.Attention(turned(q, f), turned(k, f), nn.Heads(v, bigHeads), float32(scale/math.Sqrt(bigDim)), nil))
		}
		w := world{
			module + ".norm_q@0": q, module + ".norm_k@0": k, module + ".to_v@0": v, module + "@0:in.freqs_cis": table,
			module + "@0:q": headsFirst(turned(q, rope.Interleaved)), module + ".to_out.0@0:in.0": result(rope.Interleaved, 1),
		}
		for _, c := range []struct {
			name string
			ours *mlx.Array
			hint string
		}{
			{module + ".to_out.0@0:in.0", result(rope.HalfSplit, 1), "rope layout"},
			{module + ".to_out.0@0:in.0", result(rope.Interleaved, math.Sqrt(bigDim)), "attention scale"},
			{module + "@0:q", headsFirst(turned(q, rope.HalfSplit)), "rope layout"},
			{module + "@0:q", q, "rope layout"},
		} {
			if hint, limits := w.ask(t, c.name, c.ours); hint != c.hint || !strings.HasPrefix(limits, "looked for in a part") {
				t.Errorf("%s: hint %q (%s), expected %q", c.name, hint, limits, c.hint)
			}
		}
	})
}

// TestPartOfImage has mistakes in feature maps of an autoencoder, and a tensor without a part.
func TestPartOfImage(t *testing.T) {
	lower(t)
	mlxtest.Do(t, func() {
		x := random(1, 1, 8, 256, 128)
		w := world{"vae.decoder.conv_in": x, "vae.decoder.flat": random(2, 1<<18)}
		for _, c := range []struct {
			name         string
			ours         *mlx.Array
			hint, limits string
		}{
			{"vae.decoder.conv_in", x.Add(random(3, 1, 8, 1, 1)), "bias", "looked for in a part, indices 0 to 7 of the 256 along axis 2"},
			{"vae.decoder.conv_in", x.Transpose(0, 2, 3, 1).Reshape(1, 8, 256, 128), "layout", "looked for in a part, "},
			{"vae.decoder.conv_in", mlx.Concat(2, x.Slice(2, 1, 256), x.Slice(2, 0, 1)), "parts in another order", "looked for in a "},
			{"vae.decoder.flat", w["vae.decoder.flat"].Times(2), "ratio", "looked for in a part, indices "},
		} {
			hint, limits := w.ask(t, c.name, c.ours)
			if hint != c.hint || !strings.HasPrefix(limits, c.limits) {
				t.Errorf("%s: hint %q (%s), expected %q (%s)", c.name, hint, limits, c.hint, c.limits)
			}
		}
		wide := random(1, 2, 1<<17)
		hint, limits := world{"vae.decoder.wide": wide}.ask(t, "vae.decoder.wide", wide.Times(2))
		if hint != "" || limits != "not looked for, no part of shape [2 131072] is small enough" {
			t.Errorf("hint %q (%s)", hint, limits)
		}
	})
}

// TestPartSize has the size of Z-Image's transformer for an image of 1024x1024 pixels.
func TestPartSize(t *testing.T) {
	mlxtest.Do(t, func() {
		const name = "transformer.layers.0.attention_norm1@0"
		row := mlx.Arange(1, 4129, 1, mlx.Float32).Reshape(1, 4128, 1).Over(4128)
		x := mlx.Arange(0, 4128*3840, 1, mlx.Float32).Sin().Reshape(1, 4128, 3840).Mul(row).Plus(0.3)
		w := world{name + ":in.0": x, name: x.RMSNorm(nil, 1e-5)}
		hint, limits := w.ask(t, name, x.RMSNorm(nil, 1e-2))
		if hint != "norm eps" || !strings.HasPrefix(limits, "looked for in a part, indices ") {
			t.Errorf("hint %q (%s)", hint, limits)
		}
	})
}
