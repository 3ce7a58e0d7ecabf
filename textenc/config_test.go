package textenc_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

func FuzzConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *textenc.Qwen3Config { c := textenc.DefaultQwen3Config(); return &c },
		func(c *textenc.Qwen3Config) {
			nn.Bind(textenc.NewQwen3(*c, []int{c.NumHiddenLayers, c.NumHiddenLayers - 1}, 0), "model", nil)
		},
		"../models/testdata/zimage-ordinary/model/text_encoder/config.json",
		"../models/testdata/zimage-small/model/text_encoder/config.json",
		"testdata/qwen3-published/config.json", "testdata/qwen3-small/config.json")
}

func FuzzCLIPTextConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *textenc.CLIPTextConfig { c := textenc.DefaultCLIPTextConfig(); return &c },
		func(c *textenc.CLIPTextConfig) { nn.Bind(textenc.NewCLIPText(*c, 0), "model", nil) },
		"testdata/clip-published/config.json", "testdata/clip-small/config.json", "testdata/clip-whole/config.json")
}

func FuzzT5Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *textenc.T5Config { c := textenc.DefaultT5Config(); return &c },
		func(c *textenc.T5Config) { nn.Bind(textenc.NewT5Encoder(*c, 0), "model", nil) },
		"testdata/t5-gated/config.json", "testdata/t5-small/config.json", "testdata/t5-relu/config.json")
}

// TestConfigs checks that errors name the unsupported settings of a config.
func TestConfigs(t *testing.T) {
	clip := func() hostiletest.Config { c := textenc.DefaultCLIPTextConfig(); return &c }
	t5 := func() hostiletest.Config { c := textenc.DefaultT5Config(); return &c }
	qwen3 := func() hostiletest.Config { c := textenc.DefaultQwen3Config(); return &c }
	for _, c := range []struct {
		of         func() hostiletest.Config
		text, want string
	}{
		{clip, `{}`, ""},
		{clip, `{"hidden_act": "gelu_new", "eos_token_id": 2}`, ""},
		{clip, `{"hidden_act": "relu"}`, `hidden_act "relu", expected quick_gelu, gelu or gelu_new`},
		{clip, `{"num_hidden_layers": 0}`, "num_hidden_layers 0: expected 1 to 1000"},
		{clip, `{"num_hidden_layers": 1001}`, "num_hidden_layers 1001: expected 1 to 1000"},
		{clip, `{"max_position_embeddings": 2000000}`, "max_position_embeddings 2000000: expected 1 to 1048576"},
		{clip, `{"num_attention_heads": 7}`, "hidden_size 512 must be a multiple of num_attention_heads 7"},
		{clip, `{"layer_norm_eps": -1}`, "layer_norm_eps -1: must not be negative"},
		{t5, `{}`, ""},
		{t5, `{"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": true}`, ""},
		{t5, `{"feed_forward_proj": "gated-silu"}`, `feed_forward_proj "gated-silu", expected gated-gelu or relu`},
		{t5, `{"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}`,
			`dense_act_fn "gelu", expected gelu_new with feed_forward_proj gated-gelu`},
		{t5, `{"is_gated_act": true}`, "is_gated_act true, expected false with feed_forward_proj relu"},
		{t5, `{"is_decoder": true}`, "is_decoder true"},
		{t5, `{"d_kv": 0}`, "d_kv 0: expected 1 to 1048576"},
		{t5, `{"num_layers": 1001}`, "num_layers 1001: expected 1 to 1000"},
		{t5, `{"relative_attention_num_buckets": 3}`, "relative_attention_num_buckets 3: expected 4 to 1048576"},
		{t5, `{"relative_attention_max_distance": 8}`,
			"relative_attention_max_distance 8 must be above a quarter of relative_attention_num_buckets 32"},
		{t5, `{"layer_norm_epsilon": -1}`, "layer_norm_epsilon -1: must not be negative"},
		{qwen3, `{"layer_types": ["full_attention"]}`, ""},
		{qwen3, `{"rms_norm_eps": -1}`, "rms_norm_eps -1: must not be negative"},
		{qwen3, `{"layer_types": ["full_attention", "sliding_attention"]}`,
			`layer_types ["full_attention" "sliding_attention"], expected full_attention only`},
	} {
		t.Run(c.text, func(t *testing.T) {
			config := c.of()
			if err := json.Unmarshal([]byte(c.text), config); err != nil {
				t.Fatal(err)
			}
			switch err := config.Validate(); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
}
