package component

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/textenc"
)

// T5EncoderModel is the second text encoder of FLUX.1.
var T5EncoderModel = &Class{
	Name: "T5EncoderModel", Library: "transformers", Role: TextEncoder, Folder: "text_encoder_2",
	MFlux: []*layout.Table{{
		Signature: []string{"t5_blocks.0.attention.SelfAttention.q.weight"},
		Rules: slices.Concat(layout.Rename(
			"shared", "shared",
			"shared", "encoder.embed_tokens",
			"final_layer_norm", "encoder.final_layer_norm",
			t5Bias(0), "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
		), []layout.Rule{
			{Other: t5Bias("{}")},
		}, layout.Rename(
			"t5_blocks.{}.attention", "encoder.block.{}.layer.0",
			"t5_blocks.{}.ff", "encoder.block.{}.layer.1",
		)),
		// every block has the relative position bias, which transformers stores in the
		// first block only
		Repeats: []layout.Repeat{{
			Tensor: t5Bias(0) + ".weight",
			Again:  t5Bias("{}") + ".weight",
			Per:    "t5_blocks.{}.attention.layer_norm.weight",
		}},
		Lacks: []string{"decoder.*", "lm_head.weight"},
	}},
	Original: []*layout.Table{{
		Prefixes: textPrefixes("t5xxl"), Rules: layout.Unused("spiece_model", "logit_scale"),
		Signature: []string{"encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.final_layer_norm.weight"},
	}},
	Infer:        inferT5,
	Quantization: []QuantizationRule{{"*.relative_attention_bias", 16}},
	Blocks: func(model any) BlockMemory {
		c := model.(*textenc.T5Encoder).Config
		s := languageModel(c.NumLayers, c.NumHeads, c.DModel, c.DFF)
		s.Scores = 3 // with the bias of relative positions
		return s
	},
	Untapped: []Untapped{{
		regexp.MustCompile(`^text_encoder_2\.encoder\.block\.\d+(\.layer\.0(\.SelfAttention)?)?(#\d+)?:out\.1$`),
		"T5's table of biases, which its blocks only pass on: see in.position_bias",
	}},
}

// t5Bias returns mflux's name for the relative position bias of a block.
func t5Bias(block any) string {
	return fmt.Sprintf("t5_blocks.%v.attention.SelfAttention.relative_attention_bias", block)
}

func inferT5(s *layout.Sizes, inferred, published map[string]any) {
	embedding := "shared.weight"
	if !s.Has(embedding) {
		embedding = "encoder.embed_tokens.weight"
	}
	const block = "encoder.block.0.layer."
	bias := block + "0.SelfAttention.relative_attention_bias.weight"
	heads := s.Dim(bias, 1)
	inferred["vocab_size"], inferred["d_model"] = s.Dim(embedding, 0), s.Dim(embedding, 1)
	inferred["num_heads"], inferred["relative_attention_num_buckets"] = heads, s.Dim(bias, 0)
	inferred["d_kv"] = s.Divide("the width of attention", s.Dim(block+"0.SelfAttention.q.weight", 0), heads)
	inferred["num_layers"] = s.Count("encoder.block")
	inferred["d_ff"] = s.Dim(block+"1.DenseReluDense.wo.weight", 1)
	inferred["feed_forward_proj"] = "relu"
	if s.Has(block + "1.DenseReluDense.wi_0.weight") {
		inferred["feed_forward_proj"] = "gated-gelu"
	}
	published["relative_attention_max_distance"], published["layer_norm_epsilon"] = 128, 1e-6
}
