package lora_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
)

// tensor is one of random numbers.
func tensor(name string, shape ...int) *checkpoint.Array {
	return filled(name, numbers(name, mlxtest.Size(shape)), shape...)
}

func filled(name string, values []float32, shape ...int) *checkpoint.Array {
	t, err := checkpoint.FromFloat32(name, shape, values)
	if err != nil {
		panic(err)
	}
	return t
}

func scalar(name string, v float64) *checkpoint.Array { return filled(name, []float32{float32(v)}) }

// pair is a LoRA of one module.
func pair(module string, out, rank, in int) []*checkpoint.Array {
	return []*checkpoint.Array{tensor(module+".lora_A.weight", rank, in), tensor(module+".lora_B.weight", out, rank)}
}

// save writes a LoRA and returns its path.
func save(t testing.TB, list ...*checkpoint.Array) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "my.safetensors")
	write(t, path, nil, list...)
	return path
}

func write(t testing.TB, path string, metadata map[string]string, list ...*checkpoint.Array) {
	t.Helper()
	if err := checkpoint.WriteFile(path, list, metadata); err != nil {
		t.Fatal(err)
	}
}

// load is lora.Load for one LoRA of a golden's model.
func load(t testing.TB, model string, specs ...lora.Spec) (*lora.Set, []lora.Component, error) {
	t.Helper()
	components := readGoldens(t).components(t, model)
	set, err := lora.Load(specs, components, hints()...)
	if err == nil {
		t.Cleanup(func() { set.Close() })
	}
	return set, components, err
}

// TestLoadErrors checks that errors in a file name the tensor, and that nothing is loaded.
func TestLoadErrors(t *testing.T) {
	const to = "transformer.transformer_blocks.0.attn.to_q"
	integers := tensor(to+".lora_A.weight", 3, 16)
	integers.Dtype = checkpoint.I32
	for name, test := range map[string]struct {
		tensors []*checkpoint.Array
		want    []string
	}{
		"no pair":    {pair(to, 16, 3, 16)[:1], []string{to + ": expected lora_B, found only lora_A"}},
		"no tensors": {nil, []string{"the file has no tensors"}},
		"ranks": {[]*checkpoint.Array{tensor(to+".lora_A.weight", 3, 16), tensor(to+".lora_B.weight", 16, 4)},
			[]string{to + ".lora_B.weight: expected rank 3", "[16 4]"}},
		"rank 0": {[]*checkpoint.Array{filled(to+".lora_A.weight", nil, 0, 16), filled(to+".lora_B.weight", nil, 16, 0)},
			[]string{"lora_A.weight: has rank 0"}},
		"shape": {pair(to, 16, 3, 20),
			[]string{to + ": expected a change of shape [16 16], that of transformer_blocks.0.attn.to_q.weight, found [16 20]",
				"lora_A.weight [3 20]",
				"the LoRA seems to be for a model of another size"}},
		"fused shape": {pair("diffusion_model.double_blocks.0.img_attn.qkv", 16, 3, 16),
			[]string{"expected a change of shape [48 16]", "to_q.weight, transformer_blocks.0.attn.to_k.weight", "found [16 16]"}},
		"axes": {[]*checkpoint.Array{tensor(to+".lora_A.weight", 3, 16, 2), tensor(to+".lora_B.weight", 16, 3)},
			[]string{"lora_A.weight: expected a matrix, found shape [3 16 2]"}},
		"dtype": {[]*checkpoint.Array{integers, tensor(to+".lora_B.weight", 16, 3)},
			[]string{"lora_A.weight: expected F32, F16, BF16 or F8_E4M3, found I32"}},
		"alpha 0": {append(pair(to, 16, 3, 16), scalar(to+".alpha", 0)),
			[]string{to + ".alpha: alpha is 0, expected a positive number"}},
		"alpha -1":     {append(pair(to, 16, 3, 16), scalar(to+".alpha", -1)), []string{"alpha is -1"}},
		"alpha NaN":    {append(pair(to, 16, 3, 16), scalar(to+".alpha", math.NaN())), []string{"alpha is NaN"}},
		"alpha inf":    {append(pair(to, 16, 3, 16), scalar(to+".alpha", math.Inf(1))), []string{"alpha is +Inf"}},
		"alpha absurd": {append(pair(to, 16, 3, 16), scalar(to+".alpha", 1e30)), []string{"scales the change by 3.3", "at most 100000"}},
		"alphas": {append(pair(to, 16, 3, 16), tensor(to+".alpha", 2)),
			[]string{to + ".alpha: expected one number, found shape [2]"}},
		"alpha alone": {[]*checkpoint.Array{scalar(to+".alpha", 1)}, []string{to + ": expected a change of a weight, found only alpha"}},
		"no linear": {pair("transformer.transformer_blocks.0.attn.norm_q", 8, 1, 1),
			[]string{"norm_q.weight: expected the weight of a linear layer"}},
		"two formats": {append(pair(to, 16, 3, 16), tensor(to+".diff", 16, 16)), []string{"found those of LoRA and difference"}},
		"difference": {[]*checkpoint.Array{tensor(to+".diff", 16, 3)},
			[]string{to + ".diff: expected shape [16 16], that of transformer_blocks.0.attn.to_q.weight, found [16 3]"}},
		"bias": {[]*checkpoint.Array{tensor(to+".diff_b", 17)}, []string{to + ".diff_b: expected shape [16]"}},
		"no bias": {[]*checkpoint.Array{tensor("transformer.transformer_blocks.0.attn.norm_q.diff_b", 8)},
			[]string{"norm_q has no bias"}},
		"LoKr": {[]*checkpoint.Array{tensor(to+".lokr_w1", 4, 4), tensor(to+".lokr_w2", 4, 5)},
			[]string{"expected a change of shape [16 16]", "found [16 20]", "lokr_w1 [4 4]"}},
		"half a LoKr": {[]*checkpoint.Array{tensor(to+".lokr_w1", 4, 4), tensor(to+".lokr_w2_a", 4, 2)},
			[]string{"expected lokr_w2_b, found only lokr_w1, lokr_w2_a"}},
		"LoHa": {[]*checkpoint.Array{tensor(to+".hada_w1_a", 16, 2), tensor(to+".hada_w1_b", 2, 16)},
			[]string{"expected hada_w2_a"}},
		"DoRA alone": {[]*checkpoint.Array{tensor(to+".lora_magnitude_vector", 16)},
			[]string{"expected a change of the weight, found only lora_magnitude_vector"}},
		"DoRA": {append(pair(to, 16, 3, 16), tensor(to+".lora_magnitude_vector", 15)),
			[]string{"lora_magnitude_vector: expected shape [16], found [15]"}},
		"DoRA scale": {append(pair(to, 16, 3, 16), tensor(to+".dora_scale", 16, 16)),
			[]string{"dora_scale: expected shape [16 1] or [1 16], found [16 16]"}},
		"DoRA along the inputs of several": {
			append(pair("double_blocks.0.img_attn.qkv", 48, 3, 16), tensor("double_blocks.0.img_attn.qkv.dora_scale", 1, 16)),
			[]string{"DoRA along the inputs is not supported for transformer_blocks.0.attn.to_q.weight, ", "one layer in the file"}},
		"twice": {append(pair("unet.transformer_blocks.0.attn.to_q", 16, 3, 16), pair("transformer_blocks.0.attn.to_q", 16, 3, 16)...),
			[]string{"both change transformer_blocks.0.attn.to_q.weight of the transformer"}},
		"fused and not": {append(pair("transformer_blocks.0.attn.to_qkv", 48, 3, 16), pair("double_blocks.0.img_attn.qkv", 48, 3, 16)...),
			[]string{"double_blocks.0.img_attn.qkv and transformer_blocks.0.attn.to_qkv both change"}},
		"one name twice": {append(pair(to, 16, 3, 16), tensor(to+".lora_A.default.weight", 3, 16)), []string{"are both lora_A of " + to}},
		"many": {slices.Concat(pair("x_embedder", 1, 1, 1), pair("proj_out", 1, 1, 1), pair("context_embedder", 1, 1, 1),
			pair("norm_out.linear", 1, 1, 1), pair("transformer_blocks.0.attn.to_q", 1, 1, 1),
			pair("transformer_blocks.0.attn.to_v", 1, 1, 1)),
			[]string{"context_embedder: expected", "and 1 more"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := save(t, test.tensors...)
			_, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1})
			if err == nil {
				t.Fatal("no error")
			}
			mlxtest.Contains(t, err.Error(), append(test.want, "LoRA "+path)...)
		})
	}
}

// TestLoadOneSize checks that a single change of a wrong size, among others that fit, does
// not suggest a model of another size.
func TestLoadOneSize(t *testing.T) {
	const block = "transformer.transformer_blocks.0.attn."
	path := save(t, append(pair(block+"to_q", 16, 3, 16), pair(block+"to_k", 16, 3, 20)...)...)
	_, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1})
	if err == nil || !strings.Contains(err.Error(), "to_k: expected a change of shape [16 16]") ||
		strings.Contains(err.Error(), "another size") {
		t.Errorf("found %v", err)
	}
}

// A tensor that fits nothing is an error, also among others that fit.
func TestUnmatched(t *testing.T) {
	components := "FluxTransformer2DModel, CLIPTextModel, T5EncoderModel"
	several := pair("transformer.x_embedder", 16, 3, 16)
	for i := range 30 {
		several = append(several, pair(fmt.Sprintf("transformer.transformer_blocks.%d.attn.to_qq", i), 16, 1, 16)...)
	}
	for name, test := range map[string]struct {
		tensors   []*checkpoint.Array
		want      string
		unmatched int
	}{
		"one": {append(pair("transformer.x_embedder", 16, 3, 16), tensor("transformer.x_embedder.weight", 2)),
			"does not fit this model (" + components + "): 1 of its 3 tensors matches no layer (--lora-partial uses the " +
				"others):\n\ttransformer.x_embedder.weight", 1},
		"a layer": {append(pair("transformer.x_embedder", 16, 3, 16), pair("transformer.transformer_blocks.7.attn.to_q", 16, 1, 16)...),
			"does not fit this model (" + components + "): 2 of its 4 tensors match no layer (--lora-partial uses the others):\n" +
				"\ttransformer.transformer_blocks.7.attn.to_q.lora_A.weight\n\ttransformer.transformer_blocks.7.attn.to_q.lora_B.weight",
			2},
		"many": {several,
			"does not fit this model (" + components + "): 60 of its 62 tensors match no layer (--lora-partial uses the others):\n" +
				"\ttransformer.transformer_blocks.{}.attn.to_qq.lora_A.weight (30 of this form)\n" +
				"\ttransformer.transformer_blocks.{}.attn.to_qq.lora_B.weight (30 of this form)", 60},
		"kohya": {append(pair("lora_unet_img_in", 16, 3, 16), scalar("lora_unet_img_out.alpha", 1)),
			"does not fit this model (" + components + "): 1 of its 3 tensors matches no layer (--lora-partial uses the " +
				"others):\n\tlora_unet_img_out.alpha", 1},
		"SDXL": {pair("lora_unet_input_blocks_4_1_proj_in", 16, 3, 16),
			"does not fit this model (" + components +
				"): none of its 2 tensors matches a layer; it seems to be for Stable Diffusion or SDXL:\n" +
				"\tlora_unet_input_blocks_4_1_proj_in.lora_A.weight\n\tlora_unet_input_blocks_4_1_proj_in.lora_B.weight", 2},
		"Z-Image": {pair("diffusion_model.layers.3.attention.to_q", 16, 3, 16), "it seems to be for Z-Image", 2},
		"Qwen":    {pair("transformer_blocks.3.img_mlp.net.2", 16, 3, 16), "it seems to be for Qwen-Image", 2},
		"escapes": {[]*checkpoint.Array{tensor("\x1b[2Ja\nb.lora_A.weight", 1)}, `"\x1b[2Ja\nb.lora_A.weight"`, 1},
		"long":    {[]*checkpoint.Array{tensor(strings.Repeat("x.", 1000)+"lora_A", 1)}, `"` + strings.Repeat("x.", 100) + `"...`, 1},
		"no LoRA": {[]*checkpoint.Array{tensor("decoder.mid_block.resnets.0.conv1.weight", 4, 4)},
			"not a LoRA: expected tensors such as X.lora_A.weight or X.lokr_w1, found 1 with other names", 1},
		"other": {pair("a.b", 16, 3, 16), "does not fit this model (" + components +
			"): none of its 2 tensors matches a layer:\n\ta.b.lora_A.weight", 2},
	} {
		t.Run(name, func(t *testing.T) {
			path := save(t, test.tensors...)
			_, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1})
			unmatched, ok := errors.AsType[*lora.UnmatchedError](err)
			if !ok {
				t.Fatalf("found %v, expected an UnmatchedError", err)
			}
			mlxtest.Contains(t, err.Error(), "LoRA "+path+": ", test.want)
			if len(unmatched.Keys) != test.unmatched || unmatched.Tensors != len(test.tensors) {
				t.Errorf("found %d of %d, expected %d of %d", len(unmatched.Keys), unmatched.Tensors, test.unmatched, len(test.tensors))
			}
		})
	}
}

// TestFormatsRefused: tensors of formats that are not supported are named, also with Partial.
func TestFormatsRefused(t *testing.T) {
	const to = "transformer.transformer_blocks.0.attn.to_q"
	control := []*checkpoint.Array{tensor("double_blocks.0.img_attn.norm.key_norm.scale", 8),
		tensor("double_blocks.0.img_attn.norm.query_norm.scale", 8)}
	const needs = "a control LoRA, as for depth maps and edges: its model also gets the latents of a control image"
	for want, tensors := range map[string][]*checkpoint.Array{
		"not supported: it has tensors of " + needs: append(pair("double_blocks.0.img_attn.proj", 16, 3, 16), control...),
		"which no pipeline here does (1 of 3):\n\tdiffusion_model.img_in.reshape_weight": append(
			pair("diffusion_model.img_in", 16, 3, 16), tensor("diffusion_model.img_in.reshape_weight", 2)),
		"img_in.lora_A.weight: shape [3 32]: not supported: it is that of " + needs: pair("img_in", 16, 3, 32),
		"OFT, whose changes multiply the weights (1 of N):\n\t" + to + ".oft_blocks": append(pair(to, 16, 3, 16),
			tensor(to+".oft_blocks", 2, 8, 8)),
		"OFT, whose changes multiply the weights (1 of N):\n\t" + to + ".oft_R.weight": {tensor(to+".oft_R.weight", 2,
			8)},
		"Tucker's decomposition, which only convolutions have (1 of N):\n\t" + to + ".lokr_t2": append(pair(to, 16, 3, 16),
			tensor(to+".lokr_t2", 2, 2)),
		"Tucker's decomposition, which only convolutions have (1 of N):\n\t" + to + ".lora_mid.weight": {tensor(to+".lora_mid.weight",
			2, 2)},
		"GLoRA, whose changes multiply the weights (1 of N):\n\t" + to + ".a1.weight": {tensor(to+".a1.weight", 2, 2)},
		"IA3, whose changes multiply the weights (1 of N):\n\t" + to + ".ia3_l":       {tensor(to+".ia3_l", 2, 2)},
		"PEFT's LoRA of embeddings (1 of N):\n\ttext_encoder.embeddings.token_embedding.lora_embedding_A": {
			tensor("text_encoder.embeddings.token_embedding.lora_embedding_A", 2, 2)},
		"a format of PEFT other than LoRA, LoKr and LoHa (1 of N):\n\t" + to + ".vera_lambda_b": {tensor(to+".vera_lambda_b", 2)},
		"LyCORIS' trained factor of a layer (1 of N):\n\t" + to + ".scalar": append(pair(to, 16, 3, 16),
			tensor(to+".scalar")),
		"not supported: quantization FP8 with a scale for each row (tensor \"" + to + ".lora_A.weight": {
			{Name: to + ".lora_A.weight", Dtype: checkpoint.F8E4M3, Shape: []int{1, 16}, Data: make([]byte, 16)},
			tensor(to+".lora_A.weight_scale", 2), tensor(to+".lora_B.weight", 16, 1),
		},
		"not supported: quantization FP8 with five bits of exponent (float8_e5m2) (tensor \"" + to + ".lora_A.weight": {
			{Name: to + ".lora_A.weight", Dtype: checkpoint.F8E5M2, Shape: []int{1, 16}, Data: make([]byte, 16)},
			tensor(to+".lora_B.weight", 16, 1),
		},
	} {
		for _, partial := range []bool{false, true} {
			path := saveAny(t, tensors...)
			want := strings.Replace(want, "(1 of N)", fmt.Sprintf("(1 of %d)", len(tensors)), 1)
			if _, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1,
				Partial: partial}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("found %v, expected %q", err, want)
			}
		}
	}
}

// TestLeftOut: what is left out of a LoRA is in its warnings, and the rest is used.
func TestLeftOut(t *testing.T) {
	const q, k = "transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k"
	one := pair("transformer."+q, 16, 3, 16)
	other := pair("transformer.other", 16, 3, 16)
	for name, test := range map[string]struct {
		model, strict string // the error without Partial, "" without one
		tensors       []*checkpoint.Array
		modules       int
		warnings      []string
	}{
		"textual inversion": {"flux", "", append(one, tensor("bundle_emb.ohwx.clip_l", 2, 16), tensor("bundle_emb.ohwx.t5", 2, 12)), 1,
			[]string{"left out 2 of its 4 tensors, embeddings of textual inversion, which are not supported: " +
				"bundle_emb.ohwx.clip_l, bundle_emb.ohwx.t5"}},
		"projection": {"flux", "", append(one, pair("text_encoders.clip_l.transformer.text_projection", 16, 2, 16)...), 1,
			[]string{"left out 2 of its 4 tensors, a projection that the pipeline does not use: " +
				"text_encoders.clip_l.transformer.text_projection.lora_A.weight, "}},
		"another text encoder": {"flux2", "", slices.Concat(one, pair("lora_te1_text_model_encoder_layers_0_mlp_fc1", 16, 2, 16),
			pair("lora_te1_text_model_encoder_layers_7_mlp_fc1", 16, 2, 16)), 1, []string{
			"left out 4 of its 6 tensors, of a text encoder that the pipeline does not have: " +
				"lora_te1_text_model_encoder_layers_{}_mlp_fc1.lora_A.weight (2 of this form), "}},
		"CLIP on Z-Image": {"zimage", "", slices.Concat(pair("layers.0.attention.to_q", 24, 3, 24),
			pair("lora_te1_text_model_encoder_layers_0_mlp_fc1", 16, 2, 16)),
			1, []string{"left out 2 of its 4 tensors, of a text encoder that the pipeline does not have"}},
		"a layer of a text encoder": {"flux", "2 of its 4 tensors match no layer", append(one,
			pair("lora_te1_text_model_encoder_layers_7_mlp_fc1", 24, 2, 16)...), 1,
			[]string{"left out 2 of its 4 tensors, which match no layer: lora_te1_text_model_encoder_layers_7_mlp_fc1.lora_A.weight, "}},
		"a layer": {"flux", "2 of its 4 tensors match no layer (--lora-partial uses the others):", append(one, other...), 1,
			[]string{"left out 2 of its 4 tensors, which match no layer: transformer.other.lora_A.weight, " +
				"transformer.other.lora_B.weight"}},
		"a size": {"flux", k + ": expected a change of shape [16 16]", append(one, pair("transformer."+k, 16, 3, 20)...), 1,
			[]string{"left out 1 of its 2 modules, whose layers have another size: transformer." + k}},
		"a difference of another size": {"flux", "expected shape [16 16]", append(one, tensor("transformer."+k+".diff", 16, 17)), 1,
			[]string{"left out 1 of its 2 modules, whose layers have another size: transformer." + k}},
		"another name": {"flux", "", slices.Concat(one, pair("lora_unet_double_blocks_0_img_attn_qkv", 48, 3, 16),
			pair("lora_unet_double_blocks_1_img_attn_qkv", 48, 3, 16)), 2,
			[]string{"left out lora_unet_double_blocks_0_img_attn_qkv: transformer." + q + " changes the same layers, and counts"}},
		"another prefix": {"flux", "", append(one, pair("lora_unet_transformer_blocks_0_attn_to_q", 16, 3, 16)...), 1,
			[]string{"left out lora_unet_transformer_blocks_0_attn_to_q: transformer." + q + " changes"}},
		"names of another model": {"flux", "", pair("transformer.double_blocks.0.img_attn_qkv", 48, 3, 16), 1,
			[]string{"its tensors have names of HunyuanVideo or HunyuanImage, and fit this model by chance"}},
		"nothing fits": {"flux", "none of its 2 tensors", other, 0, nil},
		"no size fits": {"flux", "another size", pair("transformer."+k, 16, 3, 20), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := save(t, test.tensors...)
			_, _, err := load(t, test.model, lora.Spec{Path: path, Scale: 1})
			if (err != nil) != (test.strict != "") || err != nil && !strings.Contains(err.Error(), test.strict) {
				t.Errorf("found %v, expected %q", err, test.strict)
			}
			set, _, err := load(t, test.model, lora.Spec{Path: path, Scale: 1, Partial: true})
			if test.modules == 0 {
				if err == nil || !strings.Contains(err.Error(), test.strict) {
					t.Errorf("found %v, expected %q", err, test.strict)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := set.Reports()[0]
			if r.Modules["transformer"] != test.modules || len(r.Warnings) != len(test.warnings) {
				t.Fatalf("found %v", r)
			}
			for i, want := range test.warnings {
				if !strings.HasPrefix(r.Warnings[i], "LoRA "+path+": "+want) {
					t.Errorf("found %s, expected %s", r.Warnings[i], want)
				}
			}
		})
	}
}

// What is no LoRA file is refused.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := filepath.Join(dir, "config", "adapter_model.safetensors")
	put("config/adapter_config.json", `{"r": 3, "lora_alpha": "NaN"}`)
	write(t, config, nil, pair("x_embedder", 16, 3, 16)...)
	pissa := filepath.Join(dir, "pissa", "adapter_model.safetensors")
	put("pissa/adapter_config.json", `{"r": 3, "lora_alpha": 3, "init_lora_weights": "pissa"}`)
	write(t, pissa, nil, pair("x_embedder", 16, 3, 16)...)
	dora := filepath.Join(dir, "dora", "adapter_model.safetensors")
	put("dora/adapter_config.json", `{"r": 3, "lora_alpha": 3, "use_dora": true}`)
	write(t, dora, nil, pair("x_embedder", 16, 3, 16)...)
	metadata := filepath.Join(dir, "metadata.safetensors")
	write(t, metadata, map[string]string{"lora_adapter_metadata": "{"}, pair("x_embedder", 16, 3, 16)...)
	for path, want := range map[string]string{
		"":                         "the path is empty",
		filepath.Join(dir, "gone"): "no such file",
		put("my.pt", "PK\x03\x04"): "safetensors.torch.save_file",
		put("my.ckpt", "x"):        "pickle file",
		put("zip.safetensors", "PK\x03\x04xxxxxxx"):                 "zip archive",
		put("cut.safetensors", "\x40\x00\x00\x00\x00\x00\x00\x00{"): "truncated",
		dir:      "expected a file, found a folder",
		config:   "adapter_config.json",
		pissa:    "path_initial_model_for_weight_conversion",
		dora:     "expected lora_magnitude_vector, because " + filepath.Join(filepath.Dir(dora), "adapter_config.json") + " sets use_dora",
		metadata: "metadata lora_adapter_metadata: unexpected end",
	} {
		_, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: found %v, expected it to contain %q", path, err, want)
		}
	}
	for _, scale := range []float64{math.NaN(), math.Inf(1)} {
		if _, _, err := load(t, "flux", lora.Spec{Path: save(t, pair("x_embedder", 16, 3, 16)...), Scale: scale}); err == nil ||
			!strings.Contains(err.Error(), "expected a number") {
			t.Errorf("scale %v: found %v", scale, err)
		}
	}
}

// TestConfigOfAnother checks that the config of a file is not used for another file in the
// same folder.
func TestConfigOfAnother(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(`{"r": 3, "lora_alpha": 6}`), 0o644); err != nil {
		t.Fatal(err)
	}
	values := map[string][]float32{}
	for _, name := range []string{"adapter_model.safetensors", "other.safetensors"} {
		write(t, filepath.Join(dir, name), nil, pair("x_embedder", 16, 3, 16)...)
	}
	for _, name := range []string{"adapter_model.safetensors", "other.safetensors"} {
		values[name] = baked(t, lora.Spec{Path: filepath.Join(dir, name), Scale: 1})["x_embedder.weight"]
	}
	w := numbers("x_embedder.weight", 256)
	for i := range w {
		with, without := values["adapter_model.safetensors"][i]-w[i], values["other.safetensors"][i]-w[i]
		if math.Abs(float64(with-2*without)) > 1e-5 {
			t.Fatalf("found changes of %v with the config and %v without, expected twice as much", with, without)
		}
	}
}

// baked are the weights that LoRAs make of FLUX's transformer.
func baked(t testing.TB, specs ...lora.Spec) map[string][]float32 {
	t.Helper()
	set, components, err := load(t, "flux", specs...)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]float32{}
	mlxtest.Do(t, func() {
		for _, c := range components {
			bake := set.Bake(c.Name, false)
			for _, p := range nn.Parameters(c.Model) {
				if w := weight(p); bake != nil {
					if changed := bake(p, w); changed != w {
						out[p.Name] = changed.Floats()
					}
				}
			}
		}
	})
	return out
}

// Several LoRAs add up, whatever they change, and a scale of 0 changes nothing.
func TestSeveral(t *testing.T) {
	one := save(t, append(pair("transformer.x_embedder", 16, 3, 16), pair("transformer.proj_out", 16, 2, 16)...)...)
	two := save(t, append(pair("lora_unet_img_in", 16, 4, 16), tensor("lora_unet_txt_in.diff_b", 16))...)
	both := baked(t, lora.Spec{Path: one, Scale: 0.5}, lora.Spec{Path: two, Scale: -2})
	set, _, err := load(t, "flux", lora.Spec{Path: one, Scale: 0.5}, lora.Spec{Path: two, Scale: -2})
	if err != nil {
		t.Fatal(err)
	}
	a, b := baked(t, lora.Spec{Path: one, Scale: 0.5}), baked(t, lora.Spec{Path: two, Scale: -2})
	mlxtest.Same(t, "changed", slices.Sorted(maps.Keys(both)), []string{"context_embedder.bias", "proj_out.weight", "x_embedder.weight"})
	w := numbers("x_embedder.weight", 256)
	for i, v := range both["x_embedder.weight"] {
		want := a["x_embedder.weight"][i] + b["x_embedder.weight"][i] - w[i]
		if math.Abs(float64(v-want)) > 1e-5 {
			t.Fatalf("element %d is %v, expected %v", i, v, want)
		}
	}
	if changed := baked(t, lora.Spec{Path: one}); len(changed) > 0 {
		t.Errorf("a scale of 0 changes %v", slices.Sorted(maps.Keys(changed)))
	}
	if got, want := fmt.Sprint(set.Reports()), fmt.Sprintf("[{%s 0.5 map[transformer:2] [] []} {%s -2 map[transformer:2] [] []}]",
		one, two); got != want {
		t.Errorf("found %s, expected %s", got, want)
	}
}

// declared is the model of a component.
func declared(components []lora.Component, name string) any {
	return components[slices.IndexFunc(components, func(c lora.Component) bool { return c.Name == name })].Model
}

// A LoRA that nobody has trained is an error, not one that does nothing.
func TestZero(t *testing.T) {
	zero := filled("x_embedder.lora_B.weight", make([]float32, 48), 16, 3)
	down := tensor("x_embedder.lora_A.weight", 3, 16)
	path := save(t, zero, down)
	if _, _, err := load(t, "flux", lora.Spec{Path: path, Scale: 1}); err == nil ||
		!strings.Contains(err.Error(), path+": has no effect") {
		t.Errorf("found %v", err)
	}
	for name, more := range map[string]*checkpoint.Array{
		"a bias": tensor("x_embedder.diff_b", 16),
		"DoRA":   tensor("x_embedder.lora_magnitude_vector", 16),
	} {
		if _, _, err := load(t, "flux", lora.Spec{Path: save(t, zero, down, more), Scale: 1}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Layers of a text encoder that are not declared, because nothing uses them, are
// no mistake of a LoRA.
func TestUnused(t *testing.T) {
	path := save(t, slices.Concat(pair("text_encoder.layers.1.mlp.up_proj", 20, 2, 12),
		pair("text_encoder.model.layers.7.mlp.up_proj", 20, 2, 12))...)
	set, _, err := load(t, "zimage", lora.Spec{Path: path, Scale: 1})
	if err != nil {
		t.Fatal(err)
	}
	report := set.Reports()[0]
	mlxtest.Same(t, "unused", report.Unused, []string{"text_encoder.model.layers.7.mlp.up_proj.lora_A.weight",
		"text_encoder.model.layers.7.mlp.up_proj.lora_B.weight"})
	if report.Modules["text_encoder"] != 1 {
		t.Errorf("found %v", report.Modules)
	}
	path = save(t, pair("text_encoder.layers.7.mlp.up_proj", 20, 2, 12)...)
	if _, _, err := load(t, "zimage", lora.Spec{Path: path, Scale: 1}); err == nil ||
		!strings.Contains(err.Error(), "none of its 2 tensors matches a layer") {
		t.Errorf("found %v", err)
	}
	path = save(t, slices.Concat(pair("text_encoder.layers.1.mlp.up_proj", 20, 2, 12),
		pair("text_encoder.layers.7.mlp.other", 20, 2, 12))...)
	if _, _, err := load(t, "zimage", lora.Spec{Path: path, Scale: 1}); err == nil ||
		!strings.Contains(err.Error(), "2 of its 4 tensors match no layer") {
		t.Errorf("found %v", err)
	}
}

// What is wrong with the values, or with a file that changed, ends the load.
func TestBakeErrors(t *testing.T) {
	bad := pair("x_embedder", 16, 3, 16)
	bad[1] = filled("x_embedder.lora_B.weight", slices.Concat(numbers("b", 47), []float32{float32(math.NaN())}), 16, 3)
	var large []*checkpoint.Array
	for _, one := range pair("x_embedder", 16, 3, 16) {
		v := one.Float32s()
		for i := range v {
			v[i] *= 3e38
		}
		large = append(large, filled(one.Name, v, one.Shape...))
	}
	for name, test := range map[string]struct {
		tensors []*checkpoint.Array
		cut     bool
		want    string
		attach  bool // whether it shows when adapters are made
	}{
		"NaN":      {bad, false, "tensor x_embedder.lora_B.weight: has NaN or infinite values", true},
		"overflow": {large, false, "makes values of x_embedder.weight in the transformer NaN or infinite", false},
		"cut":      {pair("x_embedder", 16, 3, 16), true, "the file was truncated while it was in use", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := save(t, test.tensors...)
			set, components, err := load(t, "flux", lora.Spec{Path: path, Scale: 1})
			if err != nil {
				t.Fatal(err)
			}
			if test.cut {
				if err := os.Truncate(path, 300); err != nil {
					t.Fatal(err)
				}
			}
			model := declared(components, "transformer")
			check := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("found %v, expected it to contain %q", err, test.want)
				}
			}
			check(mlxtest.Try(func() {
				bake := set.Bake("transformer", false)
				for _, p := range nn.Parameters(model) {
					p.Array = weight(p)
					bake(p, p.Array)
				}
			}))
			if test.attach {
				check(mlxtest.Try(func() {
					set.Bake("transformer", true)
					set.Attach("transformer", model)
				}))
			}
		})
	}
}

// TestAttachErrors checks that a change that must be baked, but was not, is an error.
func TestAttachErrors(t *testing.T) {
	for name, list := range map[string][]*checkpoint.Array{
		"transformer_blocks.0.attn.norm_q": {tensor("transformer_blocks.0.attn.norm_q.diff", 8)},
		"x_embedder":                       append(pair("x_embedder", 16, 3, 16), tensor("x_embedder.dora_scale", 1, 16)),
	} {
		set, components, err := load(t, "flux", lora.Spec{Path: save(t, list...), Scale: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range components {
			err = errors.Join(err, mlxtest.Try(func() {
				for _, p := range nn.Parameters(c.Model) {
					p.Array = weight(p)
				}
				set.Attach(c.Name, c.Model)
			}))
		}
		if err == nil || !strings.Contains(err.Error(),
			name+" changes "+name+".weight of the transformer, which is quantized in the file") {
			t.Errorf("%s: found %v", name, err)
		}
	}
}

// Whatever a file has, loading and baking it ends, with an error or without.
func FuzzLoad(f *testing.F) {
	g := readGoldens(f)
	var files []string
	for _, c := range g.Cases {
		if strings.HasSuffix(c.File, ".safetensors") {
			files = append(files, filepath.Join(testdata, c.File))
		} else if inside, err := filepath.Glob(filepath.Join(testdata, c.File, "*.safetensors")); err == nil {
			files = append(files, inside...)
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	components := g.components(f, "flux")
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "my.safetensors")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := lora.Load([]lora.Spec{{Path: path, Scale: 1}}, components, hints()...)
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v does not name the file", err)
			}
			return
		}
		defer set.Close()
		err = mlxtest.Try(func() {
			for _, c := range components {
				bake := set.Bake(c.Name, false)
				for _, p := range nn.Parameters(c.Model) {
					if bake == nil {
						break
					}
					w := weight(p)
					if changed := bake(p, w); !slices.Equal(changed.Shape(), w.Shape()) {
						t.Errorf("%s: found shape %v, expected %v", p.Name, changed.Shape(), w.Shape())
					}
				}
			}
		})
		if e, ok := errors.AsType[*mlx.Error](err); ok {
			t.Errorf("%v is MLX's", e)
		}
	})
}
