package family

import (
	"cmp"
	"slices"
	"strings"
)

// defaults returns the default settings of most models: a square of a megapixel, and prompts of up to
// 512 tokens.
func defaults(steps int, guidance float64) Defaults {
	return Defaults{Steps: steps, Guidance: guidance, Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

// publish returns published models. What one of them leaves out is that of common, and a licence's
// URL without a host is a file of the model's repository.
func publish(common Model, models ...Model) []Model {
	for i := range models {
		m := &models[i]
		m.Class = cmp.Or(m.Class, common.Class)
		m.Licence = cmp.Or(m.Licence, common.Licence)
		m.Gated = m.Gated || common.Gated
		m.Defaults = cmp.Or(m.Defaults, common.Defaults)
		if m.Configs == nil {
			m.Configs = common.Configs
		}
		for to, from := range map[*map[string]any]map[string]any{
			&m.Scheduler: common.Scheduler, &m.Processor: common.Processor, &m.Index: common.Index, &m.Transformer: common.Transformer,
		} {
			if *to == nil {
				*to = from
			}
		}
		if !strings.Contains(m.Licence.URL, "://") {
			m.Licence.URL = m.URL() + "/blob/main/" + m.Licence.URL
		}
	}
	return models
}

// Configs of schedulers.

// constantShift returns the config of a scheduler that shifts sigmas by a constant.
func constantShift(shift float64) map[string]any {
	return map[string]any{"shift": shift, "use_dynamic_shifting": false}
}

// shiftBySize returns the config of a scheduler that shifts sigmas by the image's size, from 0.5 for
// 256 tokens on.
func shiftBySize(shift, maxShift float64, maxTokens int) map[string]any {
	return map[string]any{
		"shift": shift, "use_dynamic_shifting": true,
		"base_shift": 0.5, "max_shift": maxShift, "base_image_seq_len": 256, "max_image_seq_len": maxTokens,
	}
}

// flowShift is the scheduler's config of the models of Black Forest Labs.
var flowShift = shiftBySize(3, 1.15, 4096)

// qwenShift is the scheduler's config of Qwen's models: it stretches sigmas so that the last one is
// 0.02.
var qwenShift = func() map[string]any {
	config := shiftBySize(1, 0.9, 8192)
	config["shift_terminal"] = 0.02
	return config
}()

// Configs of components that several published models have, without the defaults of their classes.
var (
	// clipL is CLIP-L, and t5XXL the encoder of T5-XXL.
	clipL = map[string]any{
		"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "eos_token_id": 2,
	}
	t5XXL = map[string]any{
		"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu",
		"dense_act_fn": "gelu_new", "is_gated_act": true,
	}
	qwen3Of06B = tied(map[string]any{
		"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
		"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6,
	})
	qwen3Of4B   = tied(qwen3(2560, 9728))
	qwen3Of8B   = qwen3(4096, 12288)
	qwen3VLOf4B = map[string]any{
		"tie_word_embeddings": true,
		"text_config":         tied(qwen3VL(2560, 9728, "rope_parameters")),
		"vision_config": map[string]any{
			"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2560,
			"deepstack_visual_indexes": []int{5, 11, 17},
		},
	}
	qwen3VLOf8B = map[string]any{
		"text_config": qwen3VL(4096, 12288, "rope_scaling"),
		"vision_config": map[string]any{
			"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
			"deepstack_visual_indexes": []int{8, 16, 24},
		},
	}
	qwen25VLOf7B = map[string]any{
		"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
		"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
		"rope_scaling":  map[string]any{"mrope_section": []int{16, 24, 24}, "rope_type": "default", "type": "default"},
		"vision_config": map[string]any{"hidden_size": 1280, "out_hidden_size": 3584, "in_chans": 3},
	}
	// kl16 is an autoencoder with 16 channels, as FLUX.1 and Z-Image have it.
	kl16 = map[string]any{
		"block_out_channels": []int{128, 256, 512, 512}, "layers_per_block": 2, "latent_channels": 16,
		"down_block_types": slices.Repeat([]string{"DownEncoderBlock2D"}, 4),
		"up_block_types":   slices.Repeat([]string{"UpDecoderBlock2D"}, 4),
		"scaling_factor":   0.3611, "shift_factor": 0.1159, "use_quant_conv": false, "use_post_quant_conv": false,
	}
)

// Configs of image processors.
var (
	qwen2VLProcessor = map[string]any{
		"image_processor_type": "Qwen2VLImageProcessor",
		"min_pixels":           3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
		"image_mean": []float64{0.48145466, 0.4578275, 0.40821073}, "image_std": []float64{0.26862954, 0.26130258, 0.27577711},
	}
	pixtralProcessor = map[string]any{
		"image_processor_type": "PixtralImageProcessorFast", "patch_size": 14, "size": map[string]any{"longest_edge": 1540},
	}
	qwen3VLProcessor = map[string]any{
		"image_processor_type": "Qwen2VLImageProcessorFast",
		"size":                 map[string]any{"shortest_edge": 65536, "longest_edge": 16777216},
		"patch_size":           16, "temporal_patch_size": 2, "merge_size": 2,
		"image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5},
	}
)

// qwen3 returns the config of a Qwen3 of 36 layers.
func qwen3(hidden, intermediate int) map[string]any {
	return map[string]any{
		"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 36, "num_attention_heads": 32,
		"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6,
	}
}

// tied returns the config of a language model whose head has the weights of the embeddings.
func tied(config map[string]any) map[string]any {
	config["tie_word_embeddings"] = true
	return config
}

// qwen3VL returns the config of the language model of a Qwen3-VL of 36 layers, whose rotary embedding is in
// rope_scaling, or in rope_parameters as version 5 of transformers writes it.
func qwen3VL(hidden, intermediate int, rope string) map[string]any {
	text := qwen3(hidden, intermediate)
	parameters := map[string]any{"mrope_interleaved": true, "mrope_section": []int{24, 20, 20}, "rope_type": "default"}
	text[rope] = parameters
	if text["rope_theta"] = 5e6; rope == "rope_parameters" {
		parameters["rope_theta"] = 5e6
		delete(text, "rope_theta")
	}
	return text
}
