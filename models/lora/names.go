package lora

import (
	"regexp"
	"slices"
	"strings"
)

// prefixes match the beginnings of names that are not part of a module's name, for transformers, for
// text encoders by their folder, and for all components. kohya counts text encoders from 1, and T5
// is 3. ai-toolkit has dollars for dots, and VideoX-Fun two underscores for one.
var prefixes = map[string][]*regexp.Regexp{
	"transformer": {
		regexp.MustCompile(`^(transformer|model\.diffusion_model|diffusion_model|unet|model|net|pipe\.dit|dit)[.$]+`),
		regexp.MustCompile(`^(lora_unet|lora_transformer|lycoris)[^A-Za-z0-9]+`),
	},
	"text_encoder": {
		regexp.MustCompile(`^(lora_te1?|lycoris)_+`),
		regexp.MustCompile(`^(text_encoder|clip_l|text_encoders\.[A-Za-z0-9_]+(\.transformer)?)\.`),
		textModel,
	},
	"text_encoder_2": {
		regexp.MustCompile(`^lora_te[23]_+`),
		regexp.MustCompile(`^(text_encoder_2|t5|text_encoders\.[A-Za-z0-9_]+(\.transformer)?)\.`),
		textModel,
	},
	// of Anima, in the files of its transformer
	"text_conditioner": {
		regexp.MustCompile(`^(text_conditioner|((model\.)?diffusion_model\.|net\.|transformer\.)?llm_adapter)\.`),
		regexp.MustCompile(`^(lora_unet|lycoris)_+llm_adapter_+`),
	},
	"": {regexp.MustCompile(`^(base_model\.model|module)\.`)},
}

// textModel matches prefixes that checkpoints of text encoders may have.
var textModel = regexp.MustCompile(`^(text_model|model)[._]`)

// textEncoder matches the prefix of a text encoder of any model.
var textEncoder = regexp.MustCompile(
	`^(lora_te\d?_|lora_prior_te_|text_encoder(_\d)?\.|text_encoders\.[A-Za-z0-9_]+\.|clip_[lgh]\.|t5\.)`)

// musubiFactor is a tensor in LoKrs of musubi-tuner.
const musubiFactor = "lokr_factor"

// A namedReason describes tensors with some names.
type namedReason struct {
	names *regexp.Regexp
	what  string
}

// foreign lists tensors that LoRAs may have in addition, and that change nothing in any pipeline here.
// They are left out with a warning.
var foreign = []namedReason{
	{regexp.MustCompile(`^bundle_emb\.`), "embeddings of textual inversion, which are not supported"},
	{regexp.MustCompile(`^` + musubiFactor + `$`), "a setting of the training"},
	{regexp.MustCompile(textEncoder.String() + `(.*[._])?text_projection[._]`), "a projection that the pipeline does not use"},
}

// unsupported lists formats that are not supported, which a file has only as a whole.
var unsupported = []namedReason{
	{regexp.MustCompile(`(query|key)_norm\.scale(\.set_weight)?$|\.norm_(added_)?[qk]\.weight$|\.reshape_weight$`), controlLoRA},
	{regexp.MustCompile(`[._]b?oft_([a-z]+|R|L)\b|[._]boft_(R|s)\b`), "OFT, whose changes multiply the weights"},
	{regexp.MustCompile(`\.lora_mid\b|\.(hada_t[12]|lokr_t2)\b`), "Tucker's decomposition, which only convolutions have"},
	{regexp.MustCompile(`\.[ab][12]\.weight$`), "GLoRA, whose changes multiply the weights"},
	{regexp.MustCompile(`\.on_input$|\.ia3_l\b`), "IA3, whose changes multiply the weights"},
	{regexp.MustCompile(`\.lora_embedding_[AB]\b`), "PEFT's LoRA of embeddings"},
	{regexp.MustCompile(`\.(vera_lambda_[bd]|lora_E|hra_u|randlora_\w+)\b`), "a format of PEFT other than LoRA, LoKr and LoHa"},
	{regexp.MustCompile(`\.scalar$`), "LyCORIS' trained factor of a layer"},
}

const controlLoRA = "a control LoRA, as for depth maps and edges: its model also gets the latents of a control image, " +
	"with twice as many input channels, which no pipeline here does"

// otherModels has hints for models that this version does not support, by names that no supported
// model has.
var otherModels = []Hint{
	{For: "Stable Diffusion XL", Names: regexp.MustCompile(
		`(attentions[._]\d+|(in|out)put_blocks_\d+_1|middle_block_1)[._]transformer_blocks[._][1-9]|add_embedding`)},
	{For: "Stable Cascade", Names: regexp.MustCompile(`^lora_prior_unet_`)},
	{For: "Stable Diffusion or SDXL", Names: regexp.MustCompile(`(down|up|input|output|middle|mid)_block`)},
	{For: "Stable Diffusion 3", Names: regexp.MustCompile(`joint_blocks`)},
	{For: "AuraFlow", Names: regexp.MustCompile(`joint_transformer_blocks|double_layers|single_layers[._]\d+[._](attn|mlp)`)},
	{For: "HiDream", Names: regexp.MustCompile(`(double|single)_stream_blocks`)},
	{For: "Chroma", Names: regexp.MustCompile(`distilled_guidance_layer`)},
	{For: "HunyuanVideo or HunyuanImage", Names: regexp.MustCompile(
		`\.(img|txt)_attn_(qkv|[qkv]|proj)\.|(img|txt)_attn_[qkv]\.|(img|txt)_(mlp[._]fc[12]|mod[._]linear)|` +
			`blocks[._]\d+[._]modulation[._]linear|token_refiner`)},
	{For: "Wan", Names: regexp.MustCompile(
		`(^|\.|unet_+)blocks[._]\d+[._]((cross|self)_attn[._]([qkvo]\.|norm_|[kv]_img)|ffn|attn[12]|diffusion_)`)},
	{For: "LTX-2", Names: regexp.MustCompile(`audio_(attn|ff|to_video)|video_to_audio`)},
	{For: "LTX-Video, PixArt, Sana, Mochi or CogVideoX", Names: regexp.MustCompile(
		`(^|[._])transformer_blocks[._]\d+[._]attn[12][._]|patchify_proj|adaln_single|caption_projection`)},
	{For: "Ideogram 4", Names: regexp.MustCompile(`conditional_transformer\.|layers[._]\d+[._](attention[._]o[._]|adaln_modulation)`)},
	{For: "Lumina 2 or OmniGen 2", Names: regexp.MustCompile(`layers[._]\d+[._](attn|norm1)[._](to_|linear)`)},
	{For: "Kandinsky", Names: regexp.MustCompile(`(text|visual)_transformer_blocks`)},
}

// guessModel returns the model that a LoRA with such tensor names seems to be for, or several, "" if it
// is unknown or one of the loaded classes.
func guessModel(names []string, hints []Hint, loaded []string) string {
	found := findHint(names, slices.Concat(otherModels, hints))
	models := []string{found.For}
	if found.For == "" {
		models = nil
		for _, hint := range hints {
			if hint.Shared != nil && slices.ContainsFunc(names, hint.Shared.MatchString) {
				models = append(models, hint.For)
			}
		}
	}
	for _, hint := range hints {
		if slices.Contains(models, hint.For) && slices.Contains(loaded, hint.Class) {
			return ""
		}
	}
	slices.Sort(models)
	return strings.Join(models, " or ")
}

// findHint returns the first hint that matches any of the names, otherwise a zero hint. Names of
// text encoders do not count, because several models have the same.
func findHint(names []string, hints []Hint) Hint {
	names = slices.DeleteFunc(slices.Clone(names), textEncoder.MatchString)
	for _, hint := range hints {
		if slices.ContainsFunc(names, hint.Names.MatchString) {
			return hint
		}
	}
	return Hint{}
}
