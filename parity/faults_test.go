package parity

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/parity/report"
)

// A fault is a classic mistake of ports, planted, and the verdict that it must get. There are
// three ways to plant it: edit changes the model's files before it is loaded; bug makes a module
// compute something else; fault replaces a module's output after it was compared, as if the code
// between two modules were wrong.
type fault struct {
	name   string
	dump   string // "" is zimage-ordinary
	edit   func(t *testing.T, model, run string)
	bug    func(r *replay, tap hooks.Tap) *mlx.Array
	fault  func(r *replay, tap hooks.Tap) *mlx.Array
	stage  string
	module string
	hint   string // its key, "" if no hint is expected
}

const (
	layer     = "transformer.layers.0@0"
	attn      = "transformer.layers.0.attention@0"
	textLayer = "text_encoder.layers.0"
)

// on is for one module's output.
func on(name string, f func(r *replay, tap hooks.Tap) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return func(r *replay, tap hooks.Tap) *mlx.Array {
		if tap.FullName() != name {
			return nil
		}
		return f(r, tap)
	}
}

// first of several that applies.
func either(fs ...func(*replay, hooks.Tap) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return func(r *replay, tap hooks.Tap) *mlx.Array {
		for _, f := range fs {
			if x := f(r, tap); x != nil {
				return x
			}
		}
		return nil
	}
}

// becomes puts what the reference has elsewhere in a tensor's place.
func becomes(name, other string) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(r *replay, tap hooks.Tap) *mlx.Array { return r.ref.Array(other).Reshape(tap.Output.Shape()...) })
}

// unchanged is a module that does nothing.
func unchanged(name string) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(_ *replay, tap hooks.Tap) *mlx.Array { return tap.Inputs[0].Array })
}

// onto computes with the output.
func onto(name string, f func(x *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(_ *replay, tap hooks.Tap) *mlx.Array { return f(tap.Output) })
}

// chunks are those of a block's modulation in the reference.
func chunks(r *replay, block string) []*mlx.Array {
	module, step, _ := strings.Cut(block, "@")
	return r.ref.Array(module+".adaLN_modulation.0@"+step).ExpandDims(1).Split(4, -1)
}

// rotated turns q or k of the first layer by the reference's table.
func rotated(rotate func(x, cos, sin *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	f := func(norm string) func(*replay, hooks.Tap) *mlx.Array {
		return func(r *replay, tap hooks.Tap) *mlx.Array {
			x := r.ref.Array("transformer.layers.0.attention." + norm + "@0")
			table := r.ref.Array(attn + ":in.freqs_cis")
			parts := table.Reshape(1, x.Dim(1), 1, x.Dim(3)/2, 2).Split(2, -1)
			return rotate(x, parts[0].Squeeze(-1), parts[1].Squeeze(-1))
		}
	}
	return either(on(attn+":q", f("norm_q")), on(attn+":k", f("norm_k")))
}

func halfSplit(x, cos, sin *mlx.Array) *mlx.Array {
	p := x.Split(2, -1)
	return mlx.Concat(-1, p[0].Mul(cos).Sub(p[1].Mul(sin)), p[0].Mul(sin).Add(p[1].Mul(cos)))
}

// rotatedAt1 turns q by halves, from what it was before, with a table of its
// own.
func rotatedAt1(r *replay, tap hooks.Tap) *mlx.Array {
	if tap.FullName() != "transformer.layers.0.attention@1:q" {
		return nil
	}
	x := r.ref.Array("transformer.layers.0.attention@1:q.unrotated").Slice(0, 0, 1)
	table := r.ref.Array("transformer.context_refiner.0.attention@0:in.freqs_cis").Slice(0, 0, 1)
	table = mlx.Concat(1, table, table.Slice(1, 0, 32))
	parts := table.Reshape(1, x.Dim(1), 1, x.Dim(3)/2, 2).Split(2, -1)
	return halfSplit(x, parts[0].Squeeze(-1), parts[1].Squeeze(-1))
}

// gets puts something else in the place of what modules get. It is only looked
// at: what a module was called with cannot be changed any more.
func gets(f func() *mlx.Array, names ...string) func(*replay, hooks.Tap) *mlx.Array {
	return func(_ *replay, tap hooks.Tap) *mlx.Array {
		if slices.Contains(names, tap.FullName()) {
			tap.Inputs[0].Array = f()
		}
		return nil
	}
}

// embeds is a timestep's embedding, as the first step after 0 gets it.
func embeds(t float32) func(*replay, hooks.Tap) *mlx.Array {
	return gets(func() *mlx.Array { return nn.TimestepEmbedding(t, 256) }, "transformer.t_embedder.mlp.0@1", "transformer.t_embedder.mlp@1")
}

// attends is what another attention hands to the first text layer's o_proj.
func attends(f func(q, k, v *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	entered := map[string]*mlx.Array{}
	return func(_ *replay, tap hooks.Tap) *mlx.Array {
		switch {
		case tap.Name == textLayer+".self_attn" && tap.Point.Kind == hooks.Inner:
			entered[tap.Point.Key] = tap.Output
		case tap.Name == textLayer+".self_attn.o_proj":
			tap.Inputs[0].Array = nn.MergeHeads(f(entered["q"], entered["k"], entered["v"]))
		}
		return nil
	}
}

// layerNormed is a LayerNorm where the output is an RMSNorm's.
func layerNormed(_ *replay, tap hooks.Tap) *mlx.Array {
	x := tap.Inputs[0].Array
	weight := tap.Output.Div(x.RMSNorm(nil, 1e-5)).Slice(1, 0, 1)
	return x.LayerNorm(nil, nil, 1e-5).Mul(weight)
}

func gelu(x *mlx.Array) *mlx.Array { // the tanh form
	y := x.Mul(x).Mul(x).Times(0.044715).Add(x).Times(math.Sqrt(2 / math.Pi))
	return x.Mul(y.Tanh().Plus(1)).Times(0.5)
}

var faults = []fault{
	{name: "scale of attention is the MLP's", fault: on("transformer.layers.0.attention_norm1@0",
		func(r *replay, tap hooks.Tap) *mlx.Array {
			m := chunks(r, layer)
			return tap.Output.Mul(m[2].Plus(1)).Div(m[0].Plus(1))
		}), stage: "step 0", module: layer, hint: "modulation swapped"},
	{name: "scale and gate swapped", fault: on("transformer.layers.0.ffn_norm1@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		m := chunks(r, layer)
		return tap.Output.Mul(m[3].Plus(1)).Div(m[2].Plus(1))
	}), stage: "step 0", module: layer, hint: "modulation swapped"},
	{name: "modulation without 1 +", fault: on("transformer.layers.0.attention_norm1@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		m := chunks(r, layer)
		return tap.Output.Mul(m[0]).Div(m[0].Plus(1))
	}), stage: "step 0", module: layer, hint: "modulation without 1"},
	{name: "gate missing", fault: on("transformer.layers.0.ffn_norm2@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		return tap.Output.Div(chunks(r, layer)[3].Tanh())
	}), stage: "step 0", module: layer, hint: "gate missing"},
	{name: "gate without tanh", fault: on("transformer.layers.0.ffn_norm2@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		g := chunks(r, layer)[3]
		return tap.Output.Mul(g).Div(g.Tanh())
	}), stage: "step 0", module: layer, hint: "gate"},
	{name: "RoPE half-split, not interleaved", bug: rotated(halfSplit), stage: "step 0", module: attn, hint: "rope layout"},
	{name: "RoPE missing", bug: rotated(func(x, _, _ *mlx.Array) *mlx.Array { return x }), stage: "step 0", module: attn,
		hint: "rope layout"},
	{name: "RoPE half-split where q and k are in the dump", dump: "zimage-inner", bug: rotatedAt1, stage: "step 1",
		module: "transformer.layers.0.attention@1", hint: "rope layout"},
	{name: "RoPE theta where q and k are in the dump", dump: "zimage-inner", edit: config("transformer", "rope_theta", 10000.),
		stage: "step 0", module: "transformer.noise_refiner.0.attention@0"},
	{name: "RoPE theta of the text encoder where q is in the dump", dump: "zimage-inner",
		edit: config("text_encoder", "rope_theta", 10000.), stage: "text", module: textLayer + ".self_attn", hint: "rope angles"},
	{name: "v rounded where it is in the dump", dump: "zimage-inner", bug: onto("transformer.layers.0.attention@1:v", throughHalf),
		stage: "step 1", module: "transformer.layers.0.attention@1", hint: "lost upcast"},
	{name: "attention scale missing where q is in the dump", dump: "zimage-inner",
		bug:   onto("transformer.layers.0.attention@1:q", func(x *mlx.Array) *mlx.Array { return x.Times(4) }),
		stage: "step 1", module: "transformer.layers.0.attention@1", hint: "ratio"},
	{name: "RoPE theta", edit: config("transformer", "rope_theta", 10000.), stage: "step 0",
		module: "transformer.noise_refiner.0.attention@0"},
	{name: "RoPE theta of the text encoder", edit: config("text_encoder", "rope_theta", 10000.), stage: "text",
		module: textLayer + ".self_attn", hint: "rope theta"},
	{name: "attention scale missing", fault: onto(attn+":q", func(x *mlx.Array) *mlx.Array { return x.Times(4) }), stage: "step 0",
		module: attn, hint: "attention scale"},
	{name: "attention in half precision", fault: either(
		onto(attn+":q", throughHalf), onto(attn+":k", throughHalf), onto(attn+":v", throughHalf)), stage: "step 0", module: attn,
		hint: "lost upcast"},
	{name: "RMSNorm in bfloat16", bug: onto("transformer.layers.0.attention_norm1@0", throughHalf), stage: "step 0",
		module: "transformer.layers.0.attention_norm1@0", hint: "lost upcast"},
	{name: "q and k swapped", edit: swap("transformer", "layers.0.attention.to_q.weight", "layers.0.attention.to_k.weight"),
		stage: "step 0", module: "transformer.layers.0.attention.to_q@0", hint: "swapped"},
	{name: "q/k norm missing", bug: unchanged("transformer.layers.0.attention.norm_q@0"), stage: "step 0",
		module: "transformer.layers.0.attention.norm_q@0", hint: "does nothing"},
	{name: "norm_eps of a config", edit: config("transformer", "norm_eps", 1e-3), stage: "step 0",
		module: "transformer.noise_refiner.0.attention_norm1@0", hint: "norm eps"},
	{name: "norm_eps where norms are not in the dump", dump: "zimage-small", edit: config("transformer", "norm_eps", 1e-6), stage: "step 0",
		module: "transformer.noise_refiner.0@0"},
	{name: "rms_norm_eps of a config", edit: config("text_encoder", "rms_norm_eps", 1e-4), stage: "text",
		module: textLayer + ".input_layernorm", hint: "norm eps"},
	{name: "LayerNorm for RMSNorm", bug: on("transformer.layers.0.attention_norm1@0", layerNormed), stage: "step 0",
		module: "transformer.layers.0.attention_norm1@0", hint: "norm kind"},
	{name: "final norm missing", bug: unchanged("transformer.all_final_layer.2-1.norm_final@0"), stage: "step 0",
		module: "transformer.all_final_layer.2-1.norm_final@0", hint: "does nothing"},
	{name: "gate and up of the weights swapped", edit: swap("transformer", "layers.0.feed_forward.w1.weight",
		"layers.0.feed_forward.w3.weight"), stage: "step 0", module: "transformer.layers.0.feed_forward.w1@0", hint: "swapped"},
	{name: "gate and up of the code swapped", fault: either(
		becomes("transformer.layers.0.feed_forward.w1@0", "transformer.layers.0.feed_forward.w3@0"),
		becomes("transformer.layers.0.feed_forward.w3@0", "transformer.layers.0.feed_forward.w1@0")), stage: "step 0",
		module: "transformer.layers.0.feed_forward@0", hint: "gate and up swapped"},
	{name: "plain MLP", fault: onto("transformer.layers.0.feed_forward.w3@0",
		func(x *mlx.Array) *mlx.Array { return mlx.Full(1, x.Dtype(), x.Shape()...) }),
		stage: "step 0", module: "transformer.layers.0.feed_forward@0", hint: "plain MLP"},
	{name: "GELU for SiLU", bug: on("transformer.t_embedder.mlp.1@0",
		func(_ *replay, tap hooks.Tap) *mlx.Array { return gelu(tap.Inputs[0].Array) }),
		stage: "step 0", module: "transformer.t_embedder.mlp.1@0", hint: "activation"},
	{name: "GELU in the text encoder's MLP", bug: on(textLayer+".mlp.act_fn",
		func(_ *replay, tap hooks.Tap) *mlx.Array { return gelu(tap.Inputs[0].Array) }),
		stage: "text", module: textLayer + ".mlp.act_fn", hint: "activation"},
	{name: "residual missing", bug: on("transformer.layers.0@0",
		func(_ *replay, tap hooks.Tap) *mlx.Array { return tap.Output.Sub(tap.Inputs[0].Array) }),
		stage: "step 0", module: layer, hint: "missing term"},
	{name: "sigma for the timestep", edit: config("transformer", "t_scale", 1.), stage: "step 1", module: "transformer.t_embedder@1",
		hint: "sigma for timestep"},
	{name: "index for the timestep", bug: embeds(1), stage: "step 1", module: "transformer.t_embedder@1", hint: "index for timestep"},
	{name: "time reversed", bug: embeds(750), stage: "step 1", module: "transformer.t_embedder@1", hint: "time reversed"},
	{name: "timestep of the step before", bug: embeds(0), stage: "step 1", module: "transformer.t_embedder@1",
		hint: "timestep of another step"},
	{name: "sine before cosine", bug: gets(func() *mlx.Array {
		x := nn.TimestepEmbedding(250, 256)
		return mlx.Concat(1, x.Slice(1, 128, 256), x.Slice(1, 0, 128))
	}, "transformer.t_embedder.mlp.0@1", "transformer.t_embedder.mlp@1"), stage: "step 1", module: "transformer.t_embedder@1",
		hint: "sinusoid order"},
	{name: "causal mask missing", bug: attends(nn.Attention), stage: "text", module: textLayer + ".self_attn", hint: "attention mask"},
	{name: "attention scaled twice", bug: attends(func(q, k, v *mlx.Array) *mlx.Array {
		return nn.CausalAttention(q.Times(1/math.Sqrt(float64(q.Dim(3)))), k, v)
	}), stage: "text", module: textLayer + ".self_attn", hint: "attention scale"},
	{name: "softmax in float16", bug: attends(func(q, k, v *mlx.Array) *mlx.Array {
		return nn.CausalAttention(q.AsType(mlx.Float16), k.AsType(mlx.Float16), v.AsType(mlx.Float16)).AsType(mlx.Float32)
	}), stage: "text", module: textLayer + ".self_attn", hint: "lost upcast"},
	{name: "sigmas off by one", bug: either(
		onto("sigmas", func(x *mlx.Array) *mlx.Array { return mlx.Concat(0, x.Slice(0, 1, x.Dim(0)), x.Slice(0, 0, 1)) })),
		stage: "scheduler", module: "sigmas", hint: "off by one step"},
	{name: "schedule not shifted", edit: config("scheduler", "shift", 1.), stage: "scheduler", module: "sigmas", hint: "schedule shift"},
	{name: "step between other sigmas", bug: on("latents@1", func(r *replay, _ hooks.Tap) *mlx.Array {
		return r.ref.Array("latents@0").Add(r.ref.Array("noise_pred@1").Times(-0.25)) // the sigmas are 1, 0.75 and 0
	}), stage: "step 1", module: "latents@1", hint: "scheduler step"},
	{name: "velocity with the wrong sign", bug: onto("noise_pred@0", (*mlx.Array).Neg), stage: "step 0", module: "noise_pred@0",
		hint: "sign"},
	{name: "another hidden layer", bug: becomes("prompt.embeds", "text_encoder.layers.0"), stage: "text", module: "prompt.embeds",
		hint: "hidden layer"},
	{name: "embeddings scaled", bug: onto("text_encoder.embed_tokens", func(x *mlx.Array) *mlx.Array { return x.Times(28.76) }),
		stage: "text", module: "text_encoder.embed_tokens", hint: "ratio"},
	{name: "pad token missing", edit: weight("transformer", "cap_pad_token", func(_ []int, v []float32) { clear(v) }), stage: "step 0",
		module: "transformer@0", hint: "one axis"},
	{name: "patches in another order", bug: onto("transformer@0", func(x *mlx.Array) *mlx.Array {
		h, w := x.Dim(2)/2, x.Dim(3)/2
		return x.Reshape(x.Dim(0), 1, h, 2, w, 2).Transpose(0, 1, 2, 5, 4, 3).Reshape(x.Shape()...)
	}), stage: "step 0", module: "transformer@0", hint: "permuted"},
	{name: "prompt without its template", edit: settings("prompt", "a red circle"), stage: "tokenizer", module: "prompt.input_ids"},
	{name: "channels last", bug: onto("vae.decode.in", func(x *mlx.Array) *mlx.Array {
		return x.Transpose(0, 2, 3, 1).Reshape(x.Shape()...)
	}), stage: "vae", module: "vae.decode.in", hint: "layout"},
	{name: "shift_factor left out", edit: config("vae", "shift_factor", nil), stage: "vae", module: "vae.decode.in", hint: "offset"},
	{name: "bias dropped", edit: weight("vae", "decoder.conv_in.bias", func(_ []int, v []float32) { clear(v) }), stage: "vae",
		module: "vae.decoder.conv_in", hint: "bias"},
	{name: "bias of a linear layer dropped", edit: weight("transformer", "cap_embedder.1.bias", func(_ []int, v []float32) { clear(v) }),
		stage: "step 0", module: "transformer.cap_embedder.1@0", hint: "bias"},
	{name: "convolution transposed", edit: weight("vae", "decoder.mid_block.resnets.0.conv1.weight", transposeKernel), stage: "vae",
		module: "vae.decoder.mid_block.resnets.0.conv1"},
	{name: "another layer's weights", edit: weight("transformer", "layers.0.attention.to_v.weight",
		func(_ []int, v []float32) { slices.Reverse(v) }),
		stage: "step 0", module: "transformer.layers.0.attention.to_v@0", hint: "all differ"},
	{name: "attention of the VAE missing", bug: unchanged("vae.decoder.mid_block.attentions.0"), stage: "vae",
		module: "vae.decoder.mid_block.attentions.0", hint: "does nothing"},
	{name: "overflow", bug: onto("vae.decoder.conv_norm_out", func(x *mlx.Array) *mlx.Array { return x.Times(1e38).Times(1e38) }),
		stage: "vae", module: "vae.decoder.conv_norm_out", hint: "not finite"},
	{name: "scale along the wrong axis", bug: onto("vae.decoder.mid_block.resnets.0.norm1", func(x *mlx.Array) *mlx.Array {
		return x.Mul(mlx.Arange(1, float64(x.Dim(3))+1, 1, mlx.Float32).Reshape(1, 1, 1, x.Dim(3)))
	}), stage: "vae", module: "vae.decoder.mid_block.resnets.0.norm1", hint: "scale"},
}

func throughHalf(x *mlx.Array) *mlx.Array { return x.AsType(mlx.BFloat16).AsType(x.Dtype()) }

func transposeKernel(shape []int, v []float32) {
	k := shape[3]
	for i := 0; i < len(v); i += k * k {
		for y := range k {
			for x := range y {
				v[i+y*k+x], v[i+x*k+y] = v[i+x*k+y], v[i+y*k+x]
			}
		}
	}
}

const testdata = "../models/testdata"

// plant edits the model's files, if the fault does so, and returns the folders of model, "" for the
// run's own, and run.
func (f fault) plant(t *testing.T) (model, run string) {
	run = filepath.Join(testdata, cmp.Or(f.dump, "zimage-ordinary"), "dump")
	if f.edit == nil {
		return "", run
	}
	dir := t.TempDir()
	from := filepath.Join(testdata, modelOf(t, run))
	for part, from := range map[string]string{"model": from, "dump": run} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	pictures, err := filepath.Glob(filepath.Join(run, "..", "*.png"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pictures {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	model, run = filepath.Join(dir, "model"), filepath.Join(dir, "dump")
	f.edit(t, model, run)
	return model, run
}

// TestFaults plants each fault and reads the verdict.
func TestFaults(t *testing.T) {
	for _, dump := range randtest.Some(2, []string{"zimage-ordinary", "zimage-small", "flux1-inner", "flux1-kontext", "flux1-fill",
		"flux2-inner", "qwen-inner", "krea-2-inner", "flux1-inpaint", "flux2-inpaint", "qwen-edit-inpaint-crop",
		qwen3VL}) { // what is found below is not there without it
		r, err := Replay(context.Background(), filepath.Join(testdata, dump, "dump"),
			Options{Dtype: exact, Readings: []string{report.Isolated}, quick: true})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Verdict.OK || len(r.Verdict.Hints) > 0 {
			t.Fatalf("%s without a fault: %+v", dump, r.Verdict)
		}
	}
	all := slices.Concat(faults, fluxFaults, kontextFaults, kreaFaults, animaFaults, fillFaults, qwenFaults, seedFaults,
		inpaintFaults, qwen3VLFaults, qwen21Faults, flux2DevFaults, flux3Faults, ernieFaults, layeredFaults)
	for _, f := range randtest.Some(2, all) {
		t.Run(f.name, func(t *testing.T) {
			model, run := f.plant(t)
			r, err := Replay(context.Background(), run,
				Options{Dtype: exact, Model: model, Readings: []string{report.Isolated}, quick: true, bug: f.bug, fault: f.fault})
			if err != nil {
				t.Fatal(err)
			}
			v := r.Verdict
			t.Log(v.Text)
			for _, h := range v.Hints {
				t.Logf("hint %s: %s", h.Key, h.Text)
			}
			if v.OK || v.Stage != f.stage || v.Module != f.module {
				t.Errorf("found %s in stage %s, expected %s in stage %s", v.Module, v.Stage, f.module, f.stage)
			}
			if asked := f.dump == "zimage-small"; asked != (len(v.Ask) > 0) && (asked || f.dump == "") && f.stage != "step 1" {
				t.Errorf("asks for %q", v.Ask)
			}
			if f.hint != "" && !slices.ContainsFunc(v.Hints, func(h report.Hint) bool { return h.Key == f.hint }) {
				t.Errorf("no hint %q", f.hint)
			}
		})
	}
}

// modelOf is the model of a golden, in the folder of all.
func modelOf(t *testing.T, run string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s Settings
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s.Model
}

// edited reads a JSON file, and writes it with a key changed.
func edited(t *testing.T, name, key string, value any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if _, ok := m[key]; !ok {
		t.Fatalf("%s has no %s", name, key)
	}
	m[key] = value
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// editedIn is edited for a key inside another one.
func editedIn(t *testing.T, name, outer, key string, value any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	inner, ok := m[outer].(map[string]any)
	if _, there := inner[key]; !ok || !there {
		t.Fatalf("%s has no %s in %s", name, key, outer)
	}
	inner[key] = value
	edited(t, name, outer, inner)
}

func config(component, key string, value any) func(*testing.T, string, string) {
	file := "config.json"
	if component == "scheduler" {
		file = "scheduler_config.json"
	}
	return func(t *testing.T, model, _ string) { edited(t, filepath.Join(model, component, file), key, value) }
}

func indexed(key string, value any) func(*testing.T, string, string) {
	return func(t *testing.T, model, _ string) {
		edited(t, filepath.Join(model, index.Name(os.DirFS(model))), key, value)
	}
}

func settings(key string, value any) func(*testing.T, string, string) {
	return func(t *testing.T, _, run string) { edited(t, filepath.Join(run, "settings.json"), key, value) }
}

// A stored tensor is bfloat16 in some file.
type stored struct {
	file        string
	data        []byte // of the file
	from, until int
	shape       []int
}

func findStored(t *testing.T, folder, name string) stored {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := int(binary.LittleEndian.Uint64(data))
		var header map[string]struct {
			Dtype   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets []int  `json:"data_offsets"`
		}
		if err := json.Unmarshal(data[8:8+n], &header); err != nil {
			t.Fatal(err)
		}
		if h, ok := header[name]; ok {
			if h.Dtype != "BF16" {
				t.Fatalf("%s is %s", name, h.Dtype)
			}
			return stored{file, data, 8 + n + h.Offsets[0], 8 + n + h.Offsets[1], h.Shape}
		}
	}
	t.Fatalf("no tensor %s in %s", name, folder)
	return stored{}
}

func (s stored) write(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(s.file, s.data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// weight changes a parameter's values.
func weight(component, name string, f func(shape []int, v []float32)) func(*testing.T, string, string) {
	return func(t *testing.T, model, _ string) {
		s := findStored(t, filepath.Join(model, component), name)
		raw := s.data[s.from:s.until]
		v := make([]float32, len(raw)/2)
		for i := range v {
			v[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
		f(s.shape, v)
		for i, x := range v {
			binary.LittleEndian.PutUint16(raw[2*i:], uint16(math.Float32bits(x)>>16))
		}
		s.write(t)
	}
}

// swap exchanges two parameters.
func swap(component, a, b string) func(*testing.T, string, string) {
	return func(t *testing.T, model, _ string) {
		folder := filepath.Join(model, component)
		x, y := findStored(t, folder, a), findStored(t, folder, b)
		was := slices.Clone(x.data[x.from:x.until])
		copy(x.data[x.from:x.until], y.data[y.from:y.until])
		x.write(t)
		y = findStored(t, folder, b) // it may be in the same file
		copy(y.data[y.from:y.until], was)
		y.write(t)
	}
}
