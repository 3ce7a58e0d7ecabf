package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Config is what can be said of a component's config.json by the shapes of its
// tensors.
type Config struct {
	// Told are the keys whose values follow from the shapes.
	Told map[string]any
	// Published are further ones, with the values of the published models of such
	// sizes, for where nothing says better.
	Published map[string]any
}

// Infer makes the config of a class of the shapes of its tensors; see [Shapes]. It
// judges what it needs of them, and leaves it to the config's own Validate to
// judge the result.
func Infer(class string, shapes map[string][]int) (Config, error) {
	s := &sizes{shapes: shapes}
	c := Config{map[string]any{}, map[string]any{}}
	infer, ok := inferrers[class]
	if !ok {
		return c, fmt.Errorf("no config can be made for class %s", class)
	}
	infer(s, c.Told, c.Published)
	if s.err != nil {
		return c, fmt.Errorf("config of a %s: %w", class, s.err)
	}
	return c, nil
}

var inferrers = map[string]func(s *sizes, told, published map[string]any){
	"FluxTransformer2DModel":             inferFlux,
	"Flux2Transformer2DModel":            inferFlux2,
	"ZImageTransformer2DModel":           inferZImage,
	"QwenImageTransformer2DModel":        inferQwenImage,
	"AutoencoderKL":                      inferKL,
	"AutoencoderKLFlux2":                 inferKLFlux2,
	"AutoencoderKLQwenImage":             inferKLQwenImage,
	"CLIPTextModel":                      inferCLIP,
	"T5EncoderModel":                     inferT5,
	"Qwen3Model":                         inferQwen3,
	"Qwen2_5_VLForConditionalGeneration": inferQwen25VL,
}

// sizes reads shapes, and keeps the first error.
type sizes struct {
	shapes map[string][]int
	err    error
}

func (s *sizes) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *sizes) has(name string) bool {
	_, ok := s.shapes[name]
	return ok
}

// dim is an axis of a tensor that has at least so many, 1 where there is an error.
func (s *sizes) dim(name string, axis int) int {
	shape, ok := s.shapes[name]
	switch {
	case !ok:
		s.fail("there is no tensor %s", name)
	case axis >= len(shape):
		s.fail("tensor %s: expected %d axes or more, found shape %v", name, axis+1, shape)
	case shape[axis] < 1:
		s.fail("tensor %s: is empty, of shape %v", name, shape)
	default:
		return shape[axis]
	}
	return 1
}

// over divides what must be a multiple.
func (s *sizes) over(what string, size, by int) int {
	if size%by != 0 {
		s.fail("%s is %d, expected a multiple of %d", what, size, by)
	}
	return size / by
}

// count is how many modules a list has, by the largest number of one.
func (s *sizes) count(list string) int {
	last := -1
	for name := range s.shapes {
		if rest, ok := strings.CutPrefix(name, list+"."); ok {
			number, _, _ := strings.Cut(rest, ".")
			if i, err := strconv.Atoi(number); err == nil {
				last = max(last, i)
			}
		}
	}
	if last >= len(s.shapes) {
		s.fail("%s has a module of number %d, and there are %d tensors in all", list, last, len(s.shapes))
		return 0
	}
	return last + 1
}

// heads are those of a width by the size of one, which is that of the norm of its
// queries.
func (s *sizes) heads(width int, norm string) (heads, size int) {
	size = s.dim(norm, 0)
	return s.over("the width", width, size), size
}

// axes are the rotary axes of published models, whose heads are of 128.
func axes(published map[string]any, key string, headDim int, dims ...int) {
	if headDim == 128 {
		published[key] = dims
	}
}

func inferFlux(s *sizes, told, published map[string]any) {
	width := s.dim("x_embedder.weight", 0)
	heads, size := s.heads(width, "transformer_blocks.0.attn.norm_q.weight")
	in, out := s.dim("x_embedder.weight", 1), s.dim("proj_out.weight", 0)
	told["in_channels"], told["out_channels"] = in, nil
	if out != in {
		told["out_channels"] = out
	}
	told["num_layers"], told["num_single_layers"] = s.count("transformer_blocks"), s.count("single_transformer_blocks")
	told["num_attention_heads"], told["attention_head_dim"] = heads, size
	told["joint_attention_dim"] = s.dim("context_embedder.weight", 1)
	told["pooled_projection_dim"] = s.dim("time_text_embed.text_embedder.linear_1.weight", 1)
	told["guidance_embeds"] = s.has("time_text_embed.guidance_embedder.linear_1.weight")
	published["patch_size"] = 1
	axes(published, "axes_dims_rope", size, 16, 56, 56)
}

func inferFlux2(s *sizes, told, published map[string]any) {
	width := s.dim("x_embedder.weight", 0)
	heads, size := s.heads(width, "transformer_blocks.0.attn.norm_q.weight")
	told["in_channels"], told["out_channels"] = s.dim("x_embedder.weight", 1), nil
	told["num_layers"], told["num_single_layers"] = s.count("transformer_blocks"), s.count("single_transformer_blocks")
	told["num_attention_heads"], told["attention_head_dim"] = heads, size
	told["joint_attention_dim"] = s.dim("context_embedder.weight", 1)
	told["timestep_guidance_channels"] = s.dim("time_guidance_embed.timestep_embedder.linear_1.weight", 1)
	told["guidance_embeds"] = s.has("time_guidance_embed.guidance_embedder.linear_1.weight")
	told["mlp_ratio"] = float64(s.dim("transformer_blocks.0.ff.linear_out.weight", 1)) / float64(width)
	published["patch_size"], published["rope_theta"], published["eps"] = 1, 2000, 1e-6
	axes(published, "axes_dims_rope", size, 32, 32, 32, 32)
}

func inferZImage(s *sizes, told, published map[string]any) {
	embed := "all_x_embedder.2-1.weight"
	width := s.dim(embed, 0)
	heads, size := s.heads(width, "layers.0.attention.norm_q.weight")
	told["all_patch_size"], told["all_f_patch_size"] = []int{2}, []int{1}
	told["in_channels"] = s.over("the size of a patch", s.dim(embed, 1), 4)
	told["dim"], told["n_heads"], told["n_kv_heads"] = width, heads, heads
	told["n_layers"], told["n_refiner_layers"] = s.count("layers"), s.count("noise_refiner")
	told["cap_feat_dim"] = s.dim("cap_embedder.1.weight", 1)
	told["qk_norm"] = true
	published["norm_eps"], published["rope_theta"], published["t_scale"] = 1e-5, 256, 1000
	published["axes_lens"] = []int{1536, 512, 512}
	axes(published, "axes_dims", size, 32, 48, 48)
}

func inferQwenImage(s *sizes, told, published map[string]any) {
	width := s.dim("img_in.weight", 0)
	heads, size := s.heads(width, "transformer_blocks.0.attn.norm_q.weight")
	told["patch_size"] = 2
	told["in_channels"], told["out_channels"] = s.dim("img_in.weight", 1), s.over("the size of a patch", s.dim("proj_out.weight", 0), 4)
	told["num_layers"] = s.count("transformer_blocks")
	told["num_attention_heads"], told["attention_head_dim"] = heads, size
	told["joint_attention_dim"] = s.dim("txt_in.weight", 1)
	told["guidance_embeds"] = false
	if s.has(IndexTimestepZero) {
		told["zero_cond_t"] = true
	}
	if s.has("time_text_embed.addition_t_embedding.weight") {
		told["use_additional_t_cond"] = true
	}
	axes(published, "axes_dims_rope", size, 16, 56, 56)
}

// inferCoder are the sizes of encoder and decoder as latent diffusion has them.
func inferCoder(s *sizes, told, published map[string]any) (decoder []int) {
	levels := s.count("encoder.down_blocks")
	var widths []int
	for i := range levels {
		widths = append(widths, s.dim(fmt.Sprintf("encoder.down_blocks.%d.resnets.0.conv1.weight", i), 0))
	}
	for i := range s.count("decoder.up_blocks") {
		decoder = append(decoder, s.dim(fmt.Sprintf("decoder.up_blocks.%d.resnets.0.conv1.weight", i), 0))
	}
	slices.Reverse(decoder)
	told["block_out_channels"] = widths
	told["down_block_types"] = slices.Repeat([]string{"DownEncoderBlock2D"}, levels)
	told["up_block_types"] = slices.Repeat([]string{"UpDecoderBlock2D"}, levels)
	told["layers_per_block"] = s.count("encoder.down_blocks.0.resnets")
	told["in_channels"], told["out_channels"] = s.dim("encoder.conv_in.weight", 1), s.dim("decoder.conv_out.weight", 0)
	told["latent_channels"] = s.dim("decoder.conv_in.weight", 1)
	told["use_quant_conv"], told["use_post_quant_conv"] = s.has("quant_conv.weight"), s.has("post_quant_conv.weight")
	told["mid_block_add_attention"] = s.has("decoder.mid_block.attentions.0.to_q.weight")
	published["act_fn"], published["norm_num_groups"] = "silu", 32
	return decoder
}

func inferKL(s *sizes, told, published map[string]any) {
	inferCoder(s, told, published)
	if told["latent_channels"] == 16 { // FLUX.1's, which Z-Image has too
		published["scaling_factor"], published["shift_factor"] = 0.3611, 0.1159
	}
}

func inferKLFlux2(s *sizes, told, published map[string]any) {
	told["decoder_block_out_channels"] = inferCoder(s, told, published)
	published["batch_norm_eps"], published["patch_size"] = 1e-4, []int{2, 2}
}

func inferKLQwenImage(s *sizes, told, published map[string]any) {
	base := s.dim("encoder.conv_in.weight", 0)
	told["base_dim"], told["z_dim"] = base, s.dim("decoder.conv_in.weight", 1)
	told["input_channels"] = s.dim("encoder.conv_in.weight", 1)
	told["attn_scales"] = []float64{}
	mults, temporal, blocks := []int{}, []bool{}, 0
	for i := range s.count("encoder.down_blocks") {
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		switch {
		case s.has(name + ".resample.1.weight"):
			temporal = append(temporal, s.has(name+".time_conv.weight"))
		case len(mults) == len(temporal): // the first of a level
			mults = append(mults, s.over("a level's width", s.dim(name+".conv1.weight", 0), base))
			fallthrough
		default:
			if len(mults) == 1 {
				blocks++
			}
		}
	}
	told["dim_mult"], told["num_res_blocks"] = mults, blocks
	// mflux leaves a convolution in time out, which pictures do not need
	published["temperal_downsample"] = temporal
}

func inferCLIP(s *sizes, told, published map[string]any) {
	width := s.dim("embeddings.token_embedding.weight", 1)
	told["vocab_size"], told["hidden_size"] = s.dim("embeddings.token_embedding.weight", 0), width
	told["max_position_embeddings"] = s.dim("embeddings.position_embedding.weight", 0)
	told["intermediate_size"] = s.dim("encoder.layers.0.mlp.fc1.weight", 0)
	told["num_hidden_layers"] = s.count("encoder.layers")
	if width%64 == 0 {
		published["num_attention_heads"] = width / 64
	}
	published["hidden_act"], published["layer_norm_eps"] = "quick_gelu", 1e-5
	published["eos_token_id"] = 2 // of the highest number, whatever that is
}

func inferT5(s *sizes, told, published map[string]any) {
	embedding := "shared.weight"
	if !s.has(embedding) {
		embedding = "encoder.embed_tokens.weight"
	}
	const block = "encoder.block.0.layer."
	bias := block + "0.SelfAttention.relative_attention_bias.weight"
	heads := s.dim(bias, 1)
	told["vocab_size"], told["d_model"] = s.dim(embedding, 0), s.dim(embedding, 1)
	told["num_heads"], told["relative_attention_num_buckets"] = heads, s.dim(bias, 0)
	told["d_kv"] = s.over("the width of attention", s.dim(block+"0.SelfAttention.q.weight", 0), heads)
	told["num_layers"] = s.count("encoder.block")
	told["d_ff"] = s.dim(block+"1.DenseReluDense.wo.weight", 1)
	told["feed_forward_proj"] = "relu"
	if s.has(block + "1.DenseReluDense.wi_0.weight") {
		told["feed_forward_proj"] = "gated-gelu"
	}
	published["relative_attention_max_distance"], published["layer_norm_epsilon"] = 128, 1e-6
}

func inferQwen3(s *sizes, told, published map[string]any) {
	size := s.dim("layers.0.self_attn.q_norm.weight", 0)
	told["vocab_size"], told["hidden_size"] = s.dim("embed_tokens.weight", 0), s.dim("embed_tokens.weight", 1)
	told["intermediate_size"] = s.dim("layers.0.mlp.gate_proj.weight", 0)
	told["num_hidden_layers"] = s.count("layers")
	told["head_dim"] = size
	told["num_attention_heads"] = s.over("the queries' width", s.dim("layers.0.self_attn.q_proj.weight", 0), size)
	told["num_key_value_heads"] = s.over("the keys' width", s.dim("layers.0.self_attn.k_proj.weight", 0), size)
	told["attention_bias"] = s.has("layers.0.self_attn.q_proj.bias")
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
}

// inferQwen25VL has the sizes of heads of the published model.
func inferQwen25VL(s *sizes, told, published map[string]any) {
	const size = 128
	text := "language_model.layers.0."
	embedding := "language_model.embed_tokens.weight"
	if !s.has(embedding) {
		text, embedding = "layers.0.", "embed_tokens.weight"
	}
	layers := s.count(strings.TrimSuffix(text, ".0."))
	told["vocab_size"], told["hidden_size"] = s.dim(embedding, 0), s.dim(embedding, 1)
	told["intermediate_size"], told["num_hidden_layers"] = s.dim(text+"mlp.gate_proj.weight", 0), layers
	if keys := s.dim(text+"self_attn.k_proj.weight", 0); told["hidden_size"].(int)%size == 0 && keys%size == 0 {
		published["num_attention_heads"], published["num_key_value_heads"] = told["hidden_size"].(int)/size, keys/size
	}
	published["hidden_act"], published["rms_norm_eps"], published["rope_theta"] = "silu", 1e-6, 1e6
	published["image_token_id"] = 151655
	vision := map[string]any{
		"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "hidden_act": "silu", "in_channels": 3,
		"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
		"fullatt_block_indexes": []int{7, 15, 23, 31}, "out_hidden_size": told["hidden_size"],
	}
	published["vision_config"] = vision
}
