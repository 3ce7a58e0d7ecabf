package lora

import (
	"strings"
	"testing"
)

var keys = []struct {
	name, module string
	part         part
}{
	{"transformer.x_embedder.lora_A.weight", "transformer.x_embedder", partDown},
	{"transformer.x_embedder.lora_B.weight", "transformer.x_embedder", partUp},
	{"transformer.x_embedder.lora_B.bias", "transformer.x_embedder", partUpBias},
	{"base_model.model.x_embedder.lora_A.default.weight", "base_model.model.x_embedder", partDown},
	{"base_model.model.x_embedder.lora_B.default.bias", "base_model.model.x_embedder", partUpBias},
	{"x_embedder.lora_A", "x_embedder", partDown},
	{"x_embedder.magnitude", "x_embedder", partMagnitude},
	{"x_embedder.lora.lora_A", "x_embedder", partDown},
	{"x_embedder.lora.alpha", "x_embedder", partAlpha},
	{"x_embedder.lora_magnitude_vector", "x_embedder", partMagnitude},
	{"x_embedder.lora_magnitude_vector.weight", "x_embedder", partMagnitude},
	{"x_embedder.lora_magnitude_vector.default.weight", "x_embedder", partMagnitude},
	{"lora_unet_img_in.lora_down.weight", "lora_unet_img_in", partDown},
	{"lora_unet_img_in.lora_up.weight", "lora_unet_img_in", partUp},
	{"lora_unet_img_in.alpha", "lora_unet_img_in", partAlpha},
	{"lora_unet_img_in.dora_scale", "lora_unet_img_in", partDoRAScale},
	{"x_embedder.lora.down.weight", "x_embedder", partDown},
	{"to_out.0.lora.up.weight", "to_out.0", partUp},
	{"layers.0.self_attn.to_q_lora.down.weight", "layers.0.self_attn.to_q", partDown},
	{"layers.0.mlp.fc1.lora_linear_layer.up.weight", "layers.0.mlp.fc1", partUp},
	{"double_blocks.0.processor.qkv_lora1.down.weight", "double_blocks.0.processor.qkv_lora1", partDown},
	{"single_blocks.0.processor.proj_lora.up.weight", "single_blocks.0.processor.proj", partUp},
	{"diffusion_model.img_in.diff", "diffusion_model.img_in", partDiff},
	{"diffusion_model.img_in.diff_b", "diffusion_model.img_in", partDiffBias},
	{"lycoris_norm.w_norm", "lycoris_norm", partDiff},
	{"lycoris_norm.b_norm", "lycoris_norm", partDiffBias},
	{"img_in.lokr_w1", "img_in", partKronW1},
	{"img_in.lokr_w2_b.default", "img_in", partKronW2B},
	{"img_in.hada_w1_a", "img_in", partHadaW1A},

	{"img_in.lokr_t2", "", ""},
	{"img_in.lora_mid.weight", "", ""},
	{"img_in.lora_A.bias", "", ""},
	{"img_in.lora_A.one.two.weight", "", ""},
	{"img_in.lora_embedding_A", "", ""},
	{"img_in.alpha.weight", "", ""},
	{"img_in.down.weight", "", ""},
	{"img_in.weight", "", ""},
	{"img_in", "", ""},
	{".lora_A.weight", "", ""},
	{"lora_A.weight", "", ""},
	{"lora_A", "", ""},
	{"", "", ""},
}

func TestParseKey(t *testing.T) {
	for _, test := range keys {
		module, p, ok := parseKey(test.name)
		if !ok {
			module, p = "", ""
		}
		if module != test.module || p != test.part {
			t.Errorf("%s: found %q of %q, expected %q of %q", test.name, p, module, test.part, test.module)
		}
	}
}

// A key is a module's name and more.
func FuzzParseKey(f *testing.F) {
	for _, test := range keys {
		f.Add(test.name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		module, p, ok := parseKey(name)
		if ok && (module == "" || p == "" || !strings.HasPrefix(name, module) || len(name) <= len(module)) {
			t.Errorf("%q: found %q of %q", name, p, module)
		}
	})
}

func FuzzParseMetadata(f *testing.F) {
	f.Add(`{"transformer.r": 4, "transformer.lora_alpha": 8, "transformer.alpha_pattern": {"^a\\.b": 2, "c": 1}}`)
	f.Add(`{"r": 4, "alpha": 8, "rank_pattern": {"a": 2}, "use_rslora": true, "peft_type": "LOKR"}`)
	f.Add(`{"alpha_pattern": {"(": 1}}`)
	f.Add(`{"r": 1, "lora_alpha": 1e999}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		configs, err := parseMetadata(text)
		for _, c := range configs {
			if scale := c.scale([]string{"a.b"}, 0); err == nil && !(scale > 0) {
				t.Errorf("%q: scale %v", text, scale)
			}
		}
	})
}

func TestScale(t *testing.T) {
	for _, test := range []struct {
		config string
		rank   int
		want   float64
	}{
		{`{"r": 4, "lora_alpha": 8}`, 4, 2},
		{`{"r": 4, "lora_alpha": 8}`, 16, 0.5},
		{`{"r": 4, "lora_alpha": 8, "use_rslora": true}`, 16, 2},
		{`{"r": 4, "lora_alpha": 8, "alpha_pattern": {"x.q": 2, "q": 1}}`, 4, 0.5},
		{`{"r": 4, "lora_alpha": 8, "alpha_pattern": {"q": 1, "x.q": 2}}`, 4, 0.25},
		{`{"r": 4, "lora_alpha": 8, "alpha_pattern": {"^q": 1}}`, 4, 2},
		{`{"r": 4, "lora_alpha": 8, "alpha_pattern": {"^blocks.\\d+.x.q": 1}}`, 4, 0.25},
		{`{"r": 4, "lora_alpha": 8, "alpha_pattern": {"other": 1}}`, 4, 2},
		{`{"r": 4, "alpha": 8, "rank_pattern": {"q": 2}, "alpha_pattern": null}`, 0, 4},
	} {
		configs, err := parseMetadata(test.config)
		if err != nil {
			t.Errorf("%s: %v", test.config, err)
		} else if got := configs[""].scale([]string{"blocks.0.x.q"}, test.rank); got != test.want {
			t.Errorf("%s with rank %d: found %v, expected %v", test.config, test.rank, got, test.want)
		}
	}
}

func TestMetadataErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"r": 4}`:                  "expected lora_alpha or alpha, found neither",
		`{"r": 0, "lora_alpha": 1}`: "r: expected a positive rank, found 0",
		`{"transformer.r": 4, "transformer.lora_alpha": 0}`:                "alpha is 0, expected a positive number",
		`{"r": 4, "lora_alpha": -1}`:                                       "alpha is -1",
		`{"r": 4, "lora_alpha": 4, "peft_type": "IA3"}`:                    `peft_type "IA3": expected LORA, LOKR or LOHA`,
		`{"r": 4, "lora_alpha": 4, "init_lora_weights": "pissa_niter_16"}`: "path_initial_model_for_weight_conversion",
		`{"r": 4, "lora_alpha": 4, "alpha_pattern": {"(": 1}}`:             `pattern "("`,
		`{"r": 4, "lora_alpha": 4, "alpha_pattern": {"q": 0}}`:             "alpha is 0",
		`{"r": 4, "lora_alpha": 4, "alpha_pattern": [1]}`:                  "expected an object of patterns",
		`{"r": 4, "lora_alpha": 4, "rank_pattern": {"q": 0}}`:              "rank_pattern: expected a positive rank, found 0",
		`{"r": "4", "lora_alpha": 4}`:                                      "cannot unmarshal string",
		`{`:                                                                "unexpected end",
	} {
		if _, err := parseMetadata(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: found %v, expected it to contain %q", text, err, want)
		}
	}
}
