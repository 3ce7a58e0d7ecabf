package component

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

// Qwen3VLForConditionalGeneration is the text encoder of Krea 2, Qwen-Image-2.1 and FLUX.3. Pipelines
// take it as a component named "text_encoder.model" with the tensor prefix "model.", or as a
// [Qwen3VLModel] named "text_encoder".
var Qwen3VLForConditionalGeneration = &Class{
	Name: "Qwen3VLForConditionalGeneration", Aliases: []string{Qwen3VLModel}, Library: "transformers", Role: TextEncoder,
	Folder: "text_encoder", Prefix: "model.", Headed: true,
	MFlux: []*layout.Table{{
		Metadata:  mfluxKey,
		Signature: []string{"language_model.embed_tokens.weight", "language_model.layers.0.self_attn.q_norm.weight"},
		Rules: slices.Concat(layout.Rename(
			"language_model", "model.language_model",
			"visual", "model.visual",
		), layout.Unused("language_model.rotary_emb.inv_freq", "visual.rotary_pos_emb.inv_freq")),
		ChannelsLast: true,
	}, Qwen3VLOfKrea2, Qwen3VLOfFlux3},
	// The last two have the names of ComfyUI, which are Qwen3's: files differ from those of Qwen3 by
	// their vision encoder or by ComfyUI's name for it. The sizes of their language models are equal.
	Original: []*layout.Table{qwen3VLTable("model.language_model."), qwen3VLTable("language_model."),
		qwen3VLTable("model.", "visual.deepstack_merger_list.0.linear_fc1.weight"), qwen3VLNamed("model.")},
	Shared:           []*layout.Table{qwen3VLTable("model.")},
	LoRAUnusedLayers: true,
	Infer:            inferQwen3VL,
	Quantization:     []QuantizationRule{{"*", 8}}, // docs/parity.md has the errors of 4 bits
	LanguageModel: newLanguageModel(textenc.DefaultQwen3VLConfig, func(c textenc.Qwen3VLConfig, o LanguageModelOptions) *textenc.CausalLM {
		return textenc.NewQwen3VLForConditionalGeneration(c, o.HiddenStates, o.Vision && c.Vision != nil, o.Dtype)
	}),
	Processor: func(p *textenc.Qwen2VLImageProcessor) {
		p.ImageMean, p.ImageStd, p.PatchSize = []float64{.5, .5, .5}, []float64{.5, .5, .5}, 16
		p.Size.ShortestEdge, p.Size.LongestEdge = 256*256, 4096*4096
	},
	Whole:  "Qwen/Qwen3-VL-4B-Instruct",
	Blocks: decoderBlocks,
}

// Qwen3VLOfKrea2 is mflux's layout of the text encoder of Krea 2, which it never quantizes.
var Qwen3VLOfKrea2 = &layout.Table{
	Metadata:  mfluxKey,
	Signature: []string{"embed_tokens.weight", "layers.0.self_attn.q_norm.weight"},
	Rules: slices.Concat(layout.Rename(
		"embed_tokens", "language_model.embed_tokens",
		"embed_tokens", "model.language_model.embed_tokens",
		"layers", "language_model.layers",
		"layers", "model.language_model.layers",
		"norm", "language_model.norm",
		"norm", "model.language_model.norm",
	), layout.Unused("rotary_emb.inv_freq")),
	Lacks:       []string{"lm_head.weight", "visual.*", "model.visual.*"},
	Unquantized: true,
}

// Qwen3VLOfFlux3 is mflux's layout of the text encoder of FLUX.3, which has the names of Krea 2's.
var Qwen3VLOfFlux3 = &layout.Table{
	Metadata:  mfluxKey,
	Signature: Qwen3VLOfKrea2.Signature,
	Rules: slices.Concat(layout.Rename(
		"embed_tokens", "model.language_model.embed_tokens",
		"layers", "model.language_model.layers",
		"norm", "model.language_model.norm",
	), layout.Unused("rotary_emb.inv_freq")),
	Lacks: []string{"lm_head.weight", "model.visual.*"},
}

// Qwen3VLModel is the class name of the text encoder in Krea 2: the model without a language
// model head.
const Qwen3VLModel = "Qwen3VLModel"

func qwen3VLNamed(prefix string) *layout.Table {
	t := qwen3VLTable(prefix)
	t.Prefixes, t.Prefixed = namedPrefixes(qwen3VLNames...), true
	return t
}

// qwen3VLNames are the names of ComfyUI.
var qwen3VLNames = []string{"qwen3vl_4b", "qwen3vl_8b"}

func qwen3VLTable(prefix string, more ...string) *layout.Table {
	return &layout.Table{Prefixes: textPrefixes(qwen3VLNames...), Signature: append([]string{
		prefix + "embed_tokens.weight", prefix + "layers.0.self_attn.q_norm.weight", prefix + "layers.0.mlp.gate_proj.weight",
	}, more...)}
}

// inferQwen3VL assumes the rotary embedding of the published models.
func inferQwen3VL(s *layout.Sizes, inferred, published map[string]any) {
	root := languageRoot(s)
	attention := root + "layers.0.self_attn."
	maps.Copy(inferred, languageSizes(s, root, s.Dim(attention+"q_norm.weight", 0)))
	inferred["attention_bias"] = s.Has(attention + "q_proj.bias")
	config := maps.Clone(inferred)
	config["hidden_act"], config["rms_norm_eps"], config["rope_theta"] = "silu", 1e-6, 5e6
	config["rope_scaling"] = map[string]any{"rope_type": "default", "mrope_section": []int{24, 20, 20}, "mrope_interleaved": true}
	published["text_config"], published["image_token_id"] = config, 151655
	if s.Has("visual.pos_embed.weight") {
		published["vision_config"] = inferQwen3VLVision(s)
	}
}

// inferQwen3VLVision assumes the heads, merged patches and deepstack layers of the published
// models.
func inferQwen3VLVision(s *layout.Sizes) map[string]any {
	depth := s.Count("visual.blocks")
	deepstack := []int{8, 16, 24}
	if depth == 24 {
		deepstack = []int{5, 11, 17}
	}
	const kernel = "visual.patch_embed.proj.weight" // [hidden, channels, frames, size, size]
	return map[string]any{
		"depth": depth, "hidden_size": s.Dim(kernel, 0), "in_channels": s.Dim(kernel, 1),
		"temporal_patch_size": s.Dim(kernel, 2), "patch_size": s.Dim(kernel, 3), "spatial_merge_size": 2,
		"intermediate_size": s.Dim("visual.blocks.0.mlp.linear_fc1.weight", 0), "num_heads": 16,
		"num_position_embeddings":  s.Dim("visual.pos_embed.weight", 0),
		"out_hidden_size":          s.Dim("visual.merger.linear_fc2.weight", 0),
		"deepstack_visual_indexes": deepstack, "hidden_act": "gelu_pytorch_tanh",
	}
}

// Qwen3VLWithVision declares the text encoder in a folder with its vision encoder. Some files
// have the language model only: if the config or all tensors of the vision encoder are missing,
// the model is declared without it, and missing is the error for images.
func (f *Folder) Qwen3VLWithVision(dir string, c textenc.Qwen3VLConfig, hiddenStates []int) (m *textenc.Qwen3VL, missing, err error) {
	m = textenc.NewQwen3VL(c, hiddenStates, f.Dtype)
	if c.Vision == nil {
		return m, fmt.Errorf("%s: has no vision_config: the model can generate images, but not see any",
			checkpoint.FullName(f.FS, path.Join(dir, ConfigFile))), nil
	}
	whole := textenc.NewQwen3VL(c, hiddenStates, f.Dtype).WithVision()
	found, err := f.tensorNames(dir)
	switch {
	case err != nil:
		return nil, nil, err
	case found == nil, slices.ContainsFunc(found, isVisual):
		return whole, nil, nil
	}
	var names []string
	for _, p := range nn.Parameters(whole.Visual) {
		names = append(names, "visual."+p.Name)
	}
	return m, fmt.Errorf("%s: lacks the %d tensors of the vision encoder (%s, %s, …): the model can generate images, "+
		"but not see any", checkpoint.FullName(f.FS, dir), len(names), names[0], names[1]), nil
}

// Qwen3VLVision returns the vision encoder inside the text encoder as a component of its own.
func Qwen3VLVision(m *textenc.Qwen3VL) Component {
	c := m.Config.Vision
	return Component{Model: m.Visual, Class: &Class{
		Name: "Qwen3VLVisionModel", Library: "transformers",
		Blocks: func(any) BlockMemory {
			return languageModel(c.Depth, c.NumHeads, c.HiddenSize, c.IntermediateSize)
		},
	}}
}
