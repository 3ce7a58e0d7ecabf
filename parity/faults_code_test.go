package parity

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/parity/report"
)

// A codeFault is a mistake in code. A line of Go before the text at, in a
// file of the repository, plants it where the fault is asked for by its name.
type codeFault struct {
	name, file, at, plant string
	dump                  string
	module, cause         string // of the verdict: a fused operation, or the key of a hint
}

// fusedFaults are in code that runs only without hooks.
var fusedFaults = []codeFault{
	{"norms of q and k swapped", "mlx/nn/attention.go", "q, k, dtype := p.norms[0]", "p.norms[0], p.norms[1] = p.norms[1], p.norms[0]",
		"flux1-inner", "transformer.transformer_blocks.0.attn@0", "nn.Module.NormRope"},
	{"rotary table off by one", "mlx/nn/attention.go", "q, k := f(text, ",
		"n := rope.Cos.Dim(0); rope.Cos = mlx.Concat(0, rope.Cos.Slice(0, n-1, n), rope.Cos.Slice(0, 0, n-1))",
		"zimage-ordinary", "transformer.noise_refiner.0.attention@0", "nn.Module.NormRope"},
	{"neighbours rotated", "mlx/nn/attention.go", "q, k := f(text, ", "rope.Layout = 0",
		"ernie-image", "transformer.layers.0.self_attention@0", "nn.Module.NormRope"},
	{"scale and shift swapped", "transformer/joint.go", "return n.Plain(x.Dtype(), m.Scale, m.Shift).Apply(x)",
		"m.Scale, m.Shift = m.Shift, m.Scale", "flux1-inner", "transformer.transformer_blocks.0.norm1.norm@0", "modulation.norm"},
	{"gate missing after attention", "transformer/joint.go", "sum, y := n.Plain(",
		"return []*mlx.Array{x.Add(dx), next.norm(n, x.Add(dx))}", "qwen-inner",
		"transformer.transformer_blocks.0.img_norm2@0", "modulation.addThenNorm"},
	{"gate missing in the feed-forward", "transformer/qwenimage21.go", "return nn.WideSwiGLU(nil, in[0], in[1])", "return in[1].Array()",
		"qwen-image-21", "transformer.transformer_blocks.0.img_mlp@0", "qwenImage21FeedForward.Forward"},
	{"SiLU missing before the modulation", "transformer/cosmos.go", "active := n.Fused(", "t.active = t.embedded",
		"anima", "transformer.transformer_blocks.0.norm1@0", "cosmosAdaNorm.modulation"},
	{"bias missing before a group norm", "vae/coder.go", "y = r.Conv2.Plain(", "y = y.Sub(r.Conv1.Bias.As(x.Dtype()))",
		"zimage-ordinary", "vae.decoder.mid_block.resnets.0", "resnet.Forward"},
	{"row of the timestep after", "models/family/time_table.go", "row, n := t.rows.Slice(", "i = min(i+1, len(t.timesteps)-1)",
		"flux1-inner", "latents@0", ""},
}

// cacheFaults are in what a language model computes with a cache.
var cacheFaults = []codeFault{
	{name: "cache: positions one off after the prompt", file: "textenc/language_model.go", at: "if ids.Ndim() != 2 {",
		plant: "if cache != nil && cache.tokens > 0 && ids.Dim(1) == 1 { cache.behind[0]--; defer func() { cache.behind[0]++ }() }"},
	{name: "cache: shifted by one", file: "textenc/language_model.go", at: "if ids.Ndim() != 2 {",
		plant: "if cache != nil && cache.tokens > 0 { for i := range cache.layers { l := &cache.layers[i]; if l[0].Ndim() == 4 { " +
			"n := l[0].Dim(2); l.set(0, mlx.Concat(2, l[0].Slice(2, n-1, n), l[0].Slice(2, 0, n-1)), l[1]) } } }"},
}

// codeFaults are in code that runs with hooks too.
var codeFaults = []codeFault{
	{"flux1: MLP scale and shift swapped", "transformer/flux.go",
		"nextX, normX = attnX.addThenNorm(x, dx, b.Norm2, mlpX)",
		"mlpX.Scale, mlpX.Shift = mlpX.Shift, mlpX.Scale",
		"flux1-inner", "transformer@0", "scale and shift swapped"},
	{"flux1: text MLP has the image's gate", "transformer/flux.go",
		"nextC = mlpC.add(nextC, b.FFContext.Forward(normC))",
		"mlpC.Gate = mlpX.Gate",
		"flux1-inner", "transformer@0", "gate"},
	{"zimage: gates of attention and MLP swapped", "transformer/zimage.go",
		"attn := modulation{Scale: parts[0], Gate: parts[1].Tanh()}",
		"parts[1], parts[3] = parts[3], parts[1]",
		"zimage-ordinary", "transformer.noise_refiner.0@0", "gate"},
	{"zimage: residual of attention missing", "transformer/zimage.go",
		"dy := b.FeedForward.Forward(mlp.norm(b.FFNNorm1, y))",
		"y = y.Sub(x)",
		"zimage-ordinary", "transformer.noise_refiner.0@0", "missing term"},
	{"scheduler: step to the sigma after next", "scheduler/flow_match.go",
		"return velocity.AsType(mlx.Float32).Times(float64(f.Noise.Sigmas[i+1] - f.Noise.Sigmas[i]))",
		"i = min(i+1, len(f.Noise.Sigmas)-2)",
		"zimage-ordinary", "latents@0", "scheduler step"},
	{"vae: shift subtracted", "vae/autoencoder_kl.go",
		"return z.Over(m.Config.ScalingFactor).Plus(m.shift())",
		"return z.Over(m.Config.ScalingFactor).Plus(-m.shift())",
		"zimage-ordinary", "vae.decode.in", "offset"},
	{"qwen3: gate and up swapped", "textenc/qwen3.go",
		"y := m.Fused(\"qwen3MLP.Forward\"",
		"in[0], in[1] = in[1], in[0]",
		"zimage-ordinary", "text_encoder.layers.0.mlp", "swapped"},
	{"qwen: attention's modulation is the MLP's", "transformer/qwenimage.go",
		"dx, dc := b.Attn.Forward(attnX.norm(b.ImgNorm1, x), attnC.norm(b.TxtNorm1, c), j)",
		"attnX, mlpX = mlpX, attnX",
		"qwen-inner", "transformer@0", "modulation swapped"},
	{"krea: shift and scale of the MLP exchanged", "transformer/krea2.go",
		"dx := b.Attn.Forward(attn.norm(b.Norm1, x), j)",
		"ff.Scale, ff.Shift = ff.Shift, ff.Scale",
		"krea-2-inner", "transformer.transformer_blocks.0@0", "scale and shift swapped"},
	{"flux2: single block's gate missing", "transformer/flux2.go",
		"return b.Tap(m.add(x, y), x, mod.tapped, j.emb[0], j.emb[1])",
		"return b.Tap(x.Add(y), x, mod.tapped, j.emb[0], j.emb[1])",
		"flux2-inner", "transformer@0", "gate missing"},
	{"flux2: MLP scale and shift swapped", "transformer/flux2.go",
		"nextX, normX := attnX.addThenNorm(x, dx, b.Norm2, mlpX)",
		"mlpX.Scale, mlpX.Shift = mlpX.Shift, mlpX.Scale",
		"flux2-inner", "transformer@0", "scale and shift swapped"},
	{"qwen: text's scale and shift swapped", "transformer/qwenimage.go",
		"nextC, normC := attnC.addThenNorm(c, dc, b.TxtNorm2, mlpC)",
		"mlpC.Scale, mlpC.Shift = mlpC.Shift, mlpC.Scale",
		"qwen-inner", "transformer@0", "scale and shift swapped"},
	{"flux1: norm_out shift first", "transformer/joint.go",
		"return n.Tap(m.norm(n.Norm, x), x, t.temb)",
		"m.Scale, m.Shift = m.Shift, m.Scale",
		"flux1-inner", "transformer@0", "scale and shift swapped"},
	{"qwen3: eps of the norm before attention", "textenc/qwen3.go",
		"y := l.attend(l.InputLayerNorm.Forward(x).AsType(p.dtype), p)",
		"l.InputLayerNorm.Eps = 1e-2",
		"zimage-ordinary", "text_encoder.layers.0.input_layernorm", "norm eps"},
	{"qwen3: post attention norm of the input", "textenc/qwen3.go",
		"both := l.FusedAll(\"qwen3Layer.after\"",
		"return x.Add(attention), l.MLP.Forward(l.PostAttentionLayerNorm.Forward(x).AsType(dtype))",
		"zimage-ordinary", "text_encoder.layers.0", "another tensor"},
	{"flux1: eps of the MLP's norm", "transformer/flux.go",
		"nextX, normX = attnX.addThenNorm(x, dx, b.Norm2, mlpX)",
		"b.Norm2.Eps = 1e-2",
		"flux1-inner", "transformer@0", "norm eps"},
	{"zimage: eps of the MLP's norm", "transformer/zimage.go",
		"dy := b.FeedForward.Forward(mlp.norm(b.FFNNorm1, y))",
		"b.FFNNorm1.Eps = 1e-2",
		"zimage-ordinary", "transformer.noise_refiner.0.ffn_norm1@0", "norm eps"},
	{"flux2: eps of the MLP's norm", "transformer/flux2.go",
		"nextX, normX := attnX.addThenNorm(x, dx, b.Norm2, mlpX)",
		"b.Norm2.Eps = 1e-2",
		"flux2-inner", "transformer@0", "norm eps"},
}

// upscalerRuns is the folder of the runs of networks that enlarge images, from that of the others.
const upscalerRuns = "../../upscaler/testdata/runs/"

// upscalerFaults are in networks that enlarge images.
var upscalerFaults = []codeFault{
	{name: "seedvr2: windows shifted by one token more", file: "transformer/seedvr2.go", at: "for i := range count {",
		plant: "if shift > 0 { shift += 1 / float64(size) }", dump: upscalerRuns + "seedvr2",
		module: "upscaler.blocks.1.attn@0"},
	{name: "rrdb: residual without its scale", file: "upscaler/rrdb.go", at: "return b.TapImage(mlx.GatedSum(",
		plant: "scale = mlx.Full(1, x.Dtype(), 1, 1, x.Dim(3))", dump: upscalerRuns + "real-esrgan", module: "upscaler.body.0@0"},
}

// plantedFault is the environment variable with the name of the fault that planted code has.
const plantedFault = "GOMFLUX_PLANTED_FAULT"

// everyCodeFault is the environment variable that has all of codeFaults planted, not a few of them.
const everyCodeFault = "GOMFLUX_FAULTS"

// TestCodeFaults plants each fault in the source, in a build of this test, and reads the verdict.
func TestCodeFaults(t *testing.T) {
	if os.Getenv(plantedFault) == "" {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", plantCode(t), "-vet=off", "-count=1", "-v",
			"-run=^TestCodeFaults$", ".")
		cmd.Env = append(os.Environ(), plantedFault+"=none")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range fusedFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Setenv(plantedFault, f.name)
			f.fused(t)
		})
	}
	pairs := faultPairs()
	for _, f := range cacheFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Setenv(plantedFault, f.name)
			v := replayText(t, "qwen3-published").Verdict
			t.Log(v.Text)
			if v.OK || v.Module != "logits.cached" ||
				!strings.Contains(v.Text, "what the cache keeps, or the positions after it, are wrong") {
				t.Errorf("found %s, expected logits.cached", v.Module)
			}
		})
	}
	for _, f := range upscalerFaults {
		t.Run(f.name, func(t *testing.T) {
			if v := f.replayed(t, f.name).Verdict; v.OK || v.Module != f.module {
				t.Errorf("found %s, expected %s", v.Module, f.module)
			}
		})
	}
	drawn, drawnPairs := len(codeFaults), len(pairs)
	if os.Getenv(everyCodeFault) != "all" {
		drawn, drawnPairs = 2, 2
	}
	for _, i := range randtest.New(t).Perm(len(codeFaults))[:drawn] {
		f := codeFaults[i]
		t.Run(f.name, func(t *testing.T) {
			v := f.replayed(t, f.name).Verdict
			if v.OK || v.Module != f.module || !hinted(v.Hints, f.cause) {
				t.Errorf("found %s, expected %s with the hint %s", v.Module, f.module, f.cause)
			}
		})
	}
	for _, i := range randtest.New(t).Perm(len(pairs))[:drawnPairs] {
		pairs[i].check(t)
	}
}

// replayed plants faults and returns the report.
func (f codeFault) replayed(t *testing.T, planted ...string) *report.Report {
	t.Helper()
	t.Setenv(plantedFault, strings.Join(planted, "; "))
	r, err := Replay(t.Context(), filepath.Join(testdata, f.dump, "dump"), Options{Dtype: exact})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	return r
}

// A faultPair is two mistakes at once.
type faultPair [2]codeFault

// faultPairs are those that one dump shows.
func faultPairs() (pairs []faultPair) {
	for i, f := range codeFaults {
		for _, g := range codeFaults[i+1:] {
			if f.dump == g.dump {
				pairs = append(pairs, faultPair{f, g})
			}
		}
	}
	return pairs
}

// check has the verdict name the mistake that comes first, and the other one, or that it is not known what
// is right behind the first.
func (p faultPair) check(t *testing.T) {
	t.Run(p[0].name+" and "+p[1].name, func(t *testing.T) {
		r := p[0].replayed(t, p[0].name, p[1].name)
		v := r.Verdict
		all := slices.Clone(v.Hints)
		for _, k := range v.Kinds {
			all = append(all, k.Hints...)
		}
		first, second := p[0], p[1]
		a, b := r.Find(first.module), r.Find(second.module)
		inside := strings.HasPrefix(first.module, strings.Split(second.module, "@")[0]) ||
			strings.HasPrefix(second.module, strings.Split(first.module, "@")[0]) // which comes first is known from the hints
		if !inside && b.Order < a.Order || inside && (v.Module != first.module || !hinted(v.Hints, first.cause)) {
			first, second = second, first
		}
		if v.OK || v.Module != first.module || !hinted(v.Hints, first.cause) {
			t.Errorf("found %s, expected %s with the hint %s", v.Module, first.module, first.cause)
		}
		if !hinted(all, second.cause) && len(v.Behind) == 0 {
			t.Errorf("nothing about %s with the hint %s", second.module, second.cause)
		}
	})
}

// fused reads the verdict about the run without hooks.
func (f codeFault) fused(t *testing.T) {
	r, err := Replay(t.Context(), filepath.Join(testdata, f.dump, "dump"), Options{Dtype: exact, Readings: []string{report.Free}})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Verdict
	t.Log(v.Text)
	if v.OK || v.Module != f.module || !strings.Contains(v.Text, f.cause) {
		t.Errorf("found %s, expected %s in %s", v.Module, f.cause, f.module)
	}
	var text, page bytes.Buffer
	data, err := json.Marshal(r)
	if err := errors.Join(err, r.Print(&text, false), r.HTML(&page)); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, text.String(), "without hooks: DIFFERS", "FAIL: "+v.Text)
	mlxtest.Contains(t, page.String(), "Without hooks: DIFFERS", f.module)
	mlxtest.Contains(t, string(data), `"unhooked":{"ok":false`, f.cause)
}

// plantCode writes the files with faults, and returns the file that lists them for go test.
func plantCode(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaced := map[string]string{}
	write := func(file, text string) {
		at := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(at, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, filepath.FromSlash(file))] = at
	}
	sources := map[string]string{}
	for _, f := range slices.Concat(fusedFaults, codeFaults, cacheFaults, upscalerFaults) {
		source := sources[f.file]
		if source == "" {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.file)))
			if err != nil {
				t.Fatal(err)
			}
			source = string(text)
			folder := filepath.ToSlash(filepath.Dir(f.file))
			write(folder+"/planted.go", "package "+filepath.Base(folder)+"\n\nimport (\n\"os\"\n\"slices\"\n\"strings\"\n)\n\n"+
				"func planted(fault string) bool { return "+
				"slices.Contains(strings.Split(os.Getenv(\""+plantedFault+"\"), \"; \"), fault) }\n")
		}
		if strings.Count(source, f.at) != 1 {
			t.Fatalf("%s: expected %q once", f.file, f.at)
		}
		sources[f.file] = strings.Replace(source, f.at, "if planted(\""+f.name+"\") { "+f.plant+" }\n"+f.at, 1)
	}
	for file, source := range sources {
		write(file, source)
	}
	list := filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(list, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}
