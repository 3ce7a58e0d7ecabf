package component_test

import (
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
)

func TestParseQuantization(t *testing.T) {
	for _, c := range []struct {
		name  string
		group int
		want  string // the quantization, or what the error has
	}{
		{"4", 0, "{affine 4 64}"}, {"3", 32, "{affine 3 32}"}, {"5", 128, "{affine 5 128}"}, {"6", 64, "{affine 6 64}"},
		{"8", 0, "{affine 8 64}"},
		{"mxfp4", 0, "{mxfp4 4 32}"}, {"mxfp8", 32, "{mxfp8 8 32}"}, {"nvfp4", 0, "{nvfp4 4 16}"},
		{"7", 0, "expected 3, 4, 5, 6, 8, mxfp4, mxfp8, nvfp4"}, {"2", 0, "expected 3"}, {"", 0, "expected 3"},
		{"4", 16, "group size 16: expected 32, 64 or 128"}, {"4", -1, "group size -1"}, {"nvfp4", 32, "nvfp4 has groups of 16"},
	} {
		q, err := component.ParseQuantization(c.name, c.group)
		if err != nil {
			mlxtest.Contains(t, err.Error(), c.want)
		} else if fmt.Sprint(*q) != c.want {
			t.Errorf("%s with groups of %d is %v, expected %s", c.name, c.group, *q, c.want)
		} else if name := component.QuantizationName(*q); name != c.name {
			t.Errorf("the name of %v is %s, expected %s", *q, name, c.name)
		}
	}
}

// TestLayerQuantization checks the policy against names that the models have.
func TestLayerQuantization(t *testing.T) {
	affine := func(bits, group int) string {
		return fmt.Sprint(mlx.Quantization{Mode: "affine", Bits: bits, Group: group})
	}
	for _, c := range []struct {
		quantization, class, layer string
		columns                    int
		want                       string
	}{
		{"4", "FluxTransformer2DModel", "transformer_blocks.3.attn.to_q", 3072, affine(4, 64)},
		{"4", "FluxTransformer2DModel", "time_text_embed.timestep_embedder.linear_1", 256, affine(8, 64)},
		{"4", "FluxTransformer2DModel", "proj_out", 3072, affine(8, 64)},
		{"4", "FluxTransformer2DModel", "single_transformer_blocks.3.proj_out", 15360, affine(4, 64)},
		{"4", "Flux2Transformer2DModel", "double_stream_modulation_img.linear", 3072, affine(8, 64)},
		{"4", "QwenImageTransformer2DModel", "transformer_blocks.0.img_mod.1", 3072, affine(8, 64)},
		{"4", "QwenImageTransformer2DModel", "transformer_blocks.0.txt_mod.1", 3072, affine(4, 64)},
		{"4", "Qwen2_5_VLForConditionalGeneration", "layers.0.mlp.up_proj", 3584, affine(8, 64)},
		{"mxfp4", "Qwen2_5_VLForConditionalGeneration", "layers.0.mlp.up_proj", 3584, affine(8, 64)},
		{"4", "Qwen3Model", "layers.0.mlp.up_proj", 2560, affine(4, 64)},
		{"8", "AutoencoderKL", "decoder.mid_block.attentions.0.to_q", 512, "<nil>"},
		{"8", "", "decoder.mid_block.attentions.0.to_q", 512, "<nil>"}, // an AutoencoderKL whose config does not say so
		{"nvfp4", "Qwen3Model", "layers.0.mlp.up_proj", 2560, "{nvfp4 4 16}"},
		{"4", "Qwen3Model", "x", 96, affine(4, 32)},
		{"4", "Qwen3Model", "x", 100, "<nil>"},
		{"nvfp4", "Qwen3Model", "x", 24, "<nil>"},
	} {
		q, err := component.ParseQuantization(c.quantization, 0)
		if err != nil {
			t.Fatal(err)
		}
		part, found := component.Component{Class: component.Find(c.class)}, "<nil>"
		if layer := part.LayerQuantization(*q, c.layer, c.columns); layer != nil {
			found = fmt.Sprint(*layer)
		}
		if found != c.want {
			t.Errorf("%s of a %s with %d columns at %s is %s, expected %s", c.layer, c.class, c.columns, c.quantization, found, c.want)
		}
		part.Dense = true
		if layer := part.LayerQuantization(*q, c.layer, c.columns); layer != nil {
			t.Errorf("%s of a dense %s is %v", c.layer, c.class, *layer)
		}
	}
}
