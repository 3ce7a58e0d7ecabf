package parity

import (
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestUntapped names what has a counterpart and what does not, as close to each
// other as they come.
func TestUntapped(t *testing.T) {
	for _, c := range []struct {
		model, name string
		untapped    bool
	}{
		{"zimage-ordinary", "text_encoder", true},
		{"zimage-ordinary", "text_encoder#1:in.input_ids", true},
		{"zimage-ordinary", "text_encoder.embed_tokens", false},
		{"zimage-ordinary", "text_encoder.norm", true},
		{"zimage-ordinary", "transformer.layers.0@0:in.1", true},
		{"zimage-ordinary", "transformer.layers.0@0:in.0", false},
		{"zimage-ordinary", "transformer.layers.0.attention.to_out.1@0", true},
		{"zimage-ordinary", "transformer.layers.0.attention.to_out.0@0", false},
		{"flux1-schnell-ordinary", "text_encoder", false},
		{"flux1-schnell-ordinary", "text_encoder:out.pooler_output", true},
		{"flux1-schnell-ordinary", "text_encoder.embeddings", false}, // of which the file has an unused tensor too
		{"flux1-schnell-ordinary", "text_encoder.final_layer_norm", false},
		{"flux1-schnell-ordinary", "text_encoder_2", false},
		{"flux1-schnell-ordinary", "text_encoder_2.encoder.block.1.layer.0:out.1", true},
		{"flux1-schnell-ordinary", "text_encoder_2.encoder.block.1.layer.0", false},
		{"flux1-schnell-ordinary", "text_encoder_2.encoder.block.1.layer.0:in.position_bias", false},
		{"flux1-schnell-ordinary", "transformer.transformer_blocks.0@0:out.1", false},
		{"flux1-schnell-ordinary", "transformer.norm_out@0:in.1", false},
		{"flux1-schnell-ordinary", "transformer.time_text_embed.time_proj@0", false},
		{"flux1-schnell-ordinary", "transformer.time_text_embed.time_proj@0:in.0", true},
		{"flux1-schnell-ordinary", "transformer@0:in.timestep", true},
		{"flux1-schnell-ordinary", "transformer@0:in.img_ids", false},
		{"flux3-klein", "transformer@1:in.target_timestep", true},
		{"flux2-klein", "text_encoder", true},
		{"flux2-klein", "text_encoder.model#1", true},
		{"flux2-klein", "text_encoder.model:out.hidden_states.2", true},
		{"flux2-klein", "text_encoder.lm_head", true},
		{"flux2-klein", "text_encoder.model.layers.3.mlp.act_fn", false},
		{"flux2-klein", "text_encoder.model.layers.4.mlp.act_fn", true}, // hidden states 1, 2 and 4 are used
		{"flux2-klein", "text_encoder.model.layers.4.self_attn#1:q", true},
		{"flux2-klein", "prompt.attention_mask", true},
		{"flux2-klein", "vae.encoder.conv_in", false},
		{"qwen-edit", "text_encoder", true},
		{"qwen-edit", "text_encoder#1:in.pixel_values", true},
		{"qwen-edit", "text_encoder.model", false},
		{"qwen-edit", "text_encoder.model:in.pixel_values", false},
		{"qwen-edit", "text_encoder.model:in.mm_token_type_ids", true},
		{"qwen-edit", "text_encoder.model.visual:out.hidden_states.0", true},
		{"qwen-edit", "text_encoder.model.visual:out.pooler_output", false},
		{"qwen-edit", "text_encoder.model.visual.blocks.0.attn:in.cu_seqlens", true},
		{"qwen-edit", "text_encoder.model.visual.blocks.0.attn:in.0", false},
		{"qwen-edit", "text_encoder.model.language_model.layers.1", false},
		{"qwen-edit", "text_encoder.model.language_model:out.hidden_states.1", true},
		{"qwen-edit", "transformer.transformer_blocks.0@0:in.modulate_index", false},
		{"qwen-edit", "transformer.time_text_embed.time_proj@0", false},
		{"qwen-edit", "vae.encoder.down_blocks.0.dropout", true},
	} {
		model := os.DirFS("../models/testdata/" + c.model + "/model")
		a, err := untappedTensorsOf(model, modeltest.Components(t, model))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hooks.ParseName(c.name); err != nil {
			t.Fatal(err)
		}
		if reason := a.reason(c.name); (reason != "") != c.untapped {
			t.Errorf("%s, %s: reason %q, expected one: %v", c.model, c.name, reason, c.untapped)
		}
	}
}

// TestUntappedOfAll: where the model is not known, as in a diff of two runs, what
// any class of components has is left out.
func TestUntappedOfAll(t *testing.T) {
	for name, untapped := range map[string]bool{
		"transformer.layers.0@0:in.1":                             true,
		"text_encoder_2.encoder.block.1.layer.0:out.1":            true,
		"transformer.layers.0.attention.to_out.1@0":               true,
		"transformer.layers.0@0:in.0":                             false,
		"text_encoder_2.encoder.block.1.layer.0:in.position_bias": false,
		"text_encoder": false,
	} {
		if reason := untappedOfAll().reason(name); (reason != "") != untapped {
			t.Errorf("%s: reason %q, expected one: %v", name, reason, untapped)
		}
	}
}
