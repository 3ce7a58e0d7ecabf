package component_test

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/component"
)

// mfluxComponents are those of tiny models, by folder, with their classes and tables.
var mfluxComponents = []struct {
	folder string
	class  *component.Class
	table  *layout.Table
}{
	{"flux1-dev-small/model/transformer", component.FluxTransformer2DModel, component.FluxTransformer2DModel.MFlux[0]},
	{"flux1-dev-small/model/text_encoder", component.CLIPTextModel, component.CLIPTextModel.MFlux[0]},
	{"flux1-schnell-ordinary/model/text_encoder", component.CLIPTextModel, component.CLIPTextModel.MFlux[0]},
	{"flux1-dev-small/model/text_encoder_2", component.T5EncoderModel, component.T5EncoderModel.MFlux[0]},
	{"flux1-schnell-ordinary/model/text_encoder_2", component.T5EncoderModel, component.T5EncoderModel.MFlux[0]},
	{"flux1-dev-small/model/vae", component.AutoencoderKL, component.AutoencoderKL.MFlux[0]},
	{"flux2-klein/model/transformer", component.Flux2Transformer2DModel, component.Flux2Transformer2DModel.MFlux[0]},
	{"flux2-klein/model/text_encoder", component.Qwen3Model, component.Qwen3Model.MFlux[0]},
	{"flux2-klein/model/vae", component.AutoencoderKLFlux2, component.AutoencoderKLFlux2.MFlux[0]},
	{"zimage-ordinary/model/transformer", component.ZImageTransformer2DModel, component.ZImageTransformer2DModel.MFlux[0]},
	{"zimage-ordinary/model/text_encoder", component.Qwen3Model, component.Qwen3Model.MFlux[0]},
	{"zimage-small/model/text_encoder", component.Qwen3Model, component.Qwen3Model.MFlux[0]},
	{"zimage-ordinary/model/vae", component.AutoencoderKL, component.AutoencoderKLOfZImage},
	{"qwen-image-ordinary/model/transformer", component.QwenImageTransformer2DModel, component.QwenImageTransformer2DModel.MFlux[0]},
	{"qwen-image-ordinary/model/text_encoder", component.Qwen25VLForConditionalGeneration,
		component.Qwen25VLForConditionalGeneration.MFlux[0]},
	{"qwen-edit-plus/model/text_encoder", component.Qwen25VLForConditionalGeneration, component.Qwen25VLForConditionalGeneration.MFlux[0]},
	{qwen3VLTestdata + "qwen3vl-published", component.Qwen3VLForConditionalGeneration, component.Qwen3VLForConditionalGeneration.MFlux[0]},
	{qwen3VLTestdata + "qwen3vl-small", component.Qwen3VLForConditionalGeneration, component.Qwen3VLForConditionalGeneration.MFlux[0]},
	{qwen3VLTestdata + "qwen3vl-published", component.Qwen3VLForConditionalGeneration, component.Qwen3VLOfKrea2},
	{qwen3VLTestdata + "qwen3vl-small", component.Qwen3VLForConditionalGeneration, component.Qwen3VLOfKrea2},
	{"krea-2/model/transformer", component.Krea2Transformer2DModel, component.Krea2Transformer2DModel.MFlux[0]},
	{"ernie-image-small/model/transformer", component.ErnieImageTransformer2DModel, component.ErnieImageTransformer2DModel.MFlux[0]},
	{"ernie-image-small/model/text_encoder", component.Mistral3ForConditionalGeneration, component.Mistral3OfErnieImage},
	{"flux2-dev-small/model/text_encoder", component.Mistral3ForConditionalGeneration,
		component.Mistral3ForConditionalGeneration.MFlux[0]},
	{"qwen-image-ordinary/model/vae", component.AutoencoderKLQwenImage, component.AutoencoderKLQwenImage.MFlux[0]},
}

// qwen3VLTestdata is the folder of text encoders, as seen from that of models.
const qwen3VLTestdata = "../../textenc/testdata/"

// TestMFluxNames takes all names of tiny models of diffusers to mflux's and back.
func TestMFluxNames(t *testing.T) {
	plain := func(name string) string { // as transformers 4 has it
		name = strings.Replace(strings.Replace(name, "model.language_model.", "model.", 1), "model.visual.", "visual.", 1)
		for _, prefix := range []string{"text_model.", "model.", "language_model."} {
			name = strings.TrimPrefix(name, prefix)
		}
		return name
	}
	for _, c := range mfluxComponents {
		ck, err := checkpoint.OpenCheckpoint(os.DirFS("../.."), path.Join("models/testdata", c.folder))
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		table := c.table
		seen := map[string]bool{}
		for name := range ck.Tensors {
			if table.Without(name) {
				continue
			}
			other, _, _ := table.Other(name)
			if seen[other] {
				t.Errorf("%s: %s is there twice", c.folder, other)
			}
			seen[other] = true
			if names, _ := table.Names(other); len(names) != 1 || plain(names[0]) != plain(name) {
				t.Errorf("%s: %s is %s there, and that is %q here", c.folder, name, other, names)
			}
		}
		for _, name := range table.Signature {
			if !seen[name] {
				t.Errorf("%s: has no %s", c.folder, name)
			}
		}
		if _, found, err := layout.View(ck, c.class.Tables(), nil); err != nil || found != nil && found.Name == "mflux" {
			t.Errorf("%s: is taken for mflux's (%v)", c.folder, err)
		}
	}
}

// TestMFluxKnown has names that mflux 0.24.0 saves, and diffusers' for them.
func TestMFluxKnown(t *testing.T) {
	for _, c := range []struct {
		table       *layout.Table
		other, name string
	}{
		{component.FluxTransformer2DModel.MFlux[0], "transformer_blocks.18.ff_context.linear2.weight",
			"transformer_blocks.18.ff_context.net.2.weight"},
		{component.FluxTransformer2DModel.MFlux[0], "single_transformer_blocks.37.proj_mlp.scales",
			"single_transformer_blocks.37.proj_mlp.scales"},
		{component.Flux2Transformer2DModel.MFlux[0], "transformer_blocks.0.attn.to_out.scales",
			"transformer_blocks.0.attn.to_out.0.scales"},
		{component.Flux2Transformer2DModel.MFlux[0], "single_transformer_blocks.0.attn.to_out.weight",
			"single_transformer_blocks.0.attn.to_out.weight"},
		{component.ZImageTransformer2DModel.MFlux[0], "all_final_layer.2-1.adaLN_modulation.0.bias",
			"all_final_layer.2-1.adaLN_modulation.1.bias"},
		{component.ZImageTransformer2DModel.MFlux[0], "layers.29.adaLN_modulation.0.bias", "layers.29.adaLN_modulation.0.bias"},
		{component.QwenImageTransformer2DModel.MFlux[0], "transformer_blocks.59.img_mod_linear.biases",
			"transformer_blocks.59.img_mod.1.biases"},
		{component.QwenImageTransformer2DModel.MFlux[0], "transformer_blocks.0.attn.attn_to_out.0.weight",
			"transformer_blocks.0.attn.to_out.0.weight"},
		{component.Krea2Transformer2DModel.MFlux[0], "txtfusion.refiner_blocks.1.attn.qknorm.knorm.scale",
			"text_fusion.refiner_blocks.1.attn.norm_k.weight"},
		{component.Krea2Transformer2DModel.MFlux[0], "blocks.27.mlp.down.scales", "transformer_blocks.27.ff.down.scales"},
		{component.Krea2Transformer2DModel.MFlux[0], "blocks.0.mod.lin", "transformer_blocks.0.scale_shift_table"},
		{component.Krea2Transformer2DModel.MFlux[0], "tproj.linear.biases", "time_mod_proj.biases"},
		{component.CLIPTextModel.MFlux[0], "text_model.embeddings.position_embedding.weight",
			"text_model.embeddings.position_embedding.weight"},
		{component.T5EncoderModel.MFlux[0], "shared.scales", "shared.scales"},
		{component.T5EncoderModel.MFlux[0], "t5_blocks.23.ff.DenseReluDense.wi_0.weight",
			"encoder.block.23.layer.1.DenseReluDense.wi_0.weight"},
		{component.T5EncoderModel.MFlux[0], "t5_blocks.0.attention.SelfAttention.relative_attention_bias.weight",
			"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
		{component.T5EncoderModel.MFlux[0], "t5_blocks.1.attention.SelfAttention.relative_attention_bias.weight", ""},
		{component.Qwen3Model.MFlux[0], "layers.35.mlp.down_proj.weight", "model.layers.35.mlp.down_proj.weight"},
		{component.Qwen3Model.MFlux[0], "norm.weight", "model.norm.weight"},
		{component.Qwen3Model.MFlux[0], "rotary_emb.inv_freq", ""},
		{component.Qwen25VLForConditionalGeneration.MFlux[0], "encoder.layers.0.self_attn.rotary_emb.inv_freq", ""},
		{component.Qwen25VLForConditionalGeneration.MFlux[0], "encoder.visual.merger.mlp_1.bias", "visual.merger.mlp.2.bias"},
		{component.AutoencoderKL.MFlux[0], "decoder.conv_in.conv2d.weight", "decoder.conv_in.weight"},
		{component.AutoencoderKLOfZImage, "decoder.conv_in.conv.weight", "decoder.conv_in.weight"},
		{component.AutoencoderKLQwenImage.MFlux[0], "decoder.up_block3.resnets.2.norm2.weight",
			"decoder.up_blocks.3.resnets.2.norm2.gamma"},
		{component.AutoencoderKLQwenImage.MFlux[0], "encoder.down_blocks.1.resnets.0.skip_conv.conv3d.bias",
			"encoder.down_blocks.3.conv_shortcut.bias"},
		{component.AutoencoderKLQwenImage.MFlux[0], "encoder.down_blocks.2.downsamplers.0.resample_conv.weight",
			"encoder.down_blocks.8.resample.1.weight"},
		{component.AutoencoderKLQwenImage21.MFlux[0], "encoder.down_blocks.1.downsampler.time_conv.weight",
			"encoder.down_blocks.1.downsampler.time_conv.weight"},
		{component.AutoencoderKLQwenImage.MFlux[0], "encoder.down_blocks.3.resnets.1.conv2.conv3d.weight",
			"encoder.down_blocks.10.conv2.weight"},
	} {
		table := c.table
		names, _ := table.Names(c.other)
		if got := strings.Join(names, " "); got != c.name {
			t.Errorf("%s: %s is %q, expected %q", table.Class, c.other, got, c.name)
		}
		if other, _, _ := table.Other(c.name); c.name != "" && other != c.other {
			t.Errorf("%s: %s is %q there, expected %q", table.Class, c.name, other, c.other)
		}
	}
	if component.Find("UNet2DConditionModel") != nil {
		t.Error("UNet2DConditionModel is known")
	}
}

// TestMFluxTransforms checks the transforms of tensors that mflux stores differently.
func TestMFluxTransforms(t *testing.T) {
	names := map[string][]int{
		"decoder.conv_in.conv3d.weight":                   {8, 3, 3, 3, 4},
		"decoder.up_block0.resnets.0.conv1.conv3d.weight": {8, 3, 3, 3, 8},
		"decoder.up_block0.resnets.0.norm1.weight":        {8},
		"decoder.mid_block.attentions.0.norm.weight":      {8},
		"decoder.mid_block.attentions.0.to_qkv.weight":    {24, 1, 1, 8},
		"decoder.conv_in.conv3d.bias":                     {8},
	}
	ck := &checkpoint.Checkpoint{Dir: "vae", Tensors: map[string]checkpoint.Tensor{}}
	for name, shape := range names {
		ck.Tensors[name] = checkpoint.Tensor{Name: name, Dtype: "BF16", Shape: shape}
	}
	view, table, err := layout.View(ck, component.AutoencoderKLQwenImage.Tables(), nil)
	if err != nil || table == nil || table.Name != "mflux" {
		t.Fatal(table, err)
	}
	want := map[string][]int{
		"decoder.conv_in.weight":                       {8, 4, 3, 3, 3},
		"decoder.up_blocks.0.resnets.0.conv1.weight":   {8, 8, 3, 3, 3},
		"decoder.up_blocks.0.resnets.0.norm1.gamma":    {8, 1, 1, 1},
		"decoder.mid_block.attentions.0.norm.gamma":    {8, 1, 1},
		"decoder.mid_block.attentions.0.to_qkv.weight": {24, 8, 1, 1},
		"decoder.conv_in.bias":                         {8},
	}
	got := map[string][]int{}
	for name, x := range view.Tensors {
		got[name] = x.Shape
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]int]) {
		t.Errorf("found %v, expected %v", got, want)
	}
}

// TestMFluxQwen21VAE checks the transforms of an autoencoder whose names are diffusers' own. Only
// the metadata tell it from diffusers' file.
func TestMFluxQwen21VAE(t *testing.T) {
	want := map[string][]int{
		"decoder.conv_in.weight":                          {8, 4, 3, 3},
		"decoder.up_blocks.0.resnets.0.norm1.gamma":       {8, 1, 1, 1},
		"decoder.up_blocks.0.upsampler.resample.1.weight": {8, 8, 3, 3},
		"decoder.mid_block.attentions.0.norm.gamma":       {8, 1, 1},
		"decoder.mid_block.attentions.0.to_qkv.weight":    {24, 8, 1, 1},
		"encoder.norm_out.gamma":                          {8, 1, 1, 1},
		"decoder.conv_in.bias":                            {8},
	}
	stored := map[string][]int{
		"decoder.conv_in.weight":                          {8, 3, 3, 4},
		"decoder.up_blocks.0.resnets.0.norm1.gamma":       {8},
		"decoder.up_blocks.0.upsampler.resample.1.weight": {8, 3, 3, 8},
		"decoder.mid_block.attentions.0.norm.gamma":       {8},
		"decoder.mid_block.attentions.0.to_qkv.weight":    {24, 1, 1, 8},
		"encoder.norm_out.gamma":                          {8},
		"decoder.conv_in.bias":                            {8},
	}
	for _, mflux := range []bool{false, true} {
		f := &checkpoint.File{Header: &checkpoint.Header{}}
		if mflux {
			f.Header.Metadata = map[string]string{"mflux_version": "0.24.0"}
		}
		ck := &checkpoint.Checkpoint{Dir: "vae", Tensors: map[string]checkpoint.Tensor{}, Files: []*checkpoint.File{f}}
		for name, shape := range stored {
			ck.Tensors[name] = checkpoint.Tensor{Name: name, Dtype: "BF16", Shape: shape}
		}
		view, table, err := layout.View(ck, component.AutoencoderKLQwenImage21.Tables(), nil)
		if err != nil || (table != nil) != mflux {
			t.Fatal(mflux, table, err)
		}
		if !mflux {
			continue
		}
		got := map[string][]int{}
		for name, x := range view.Tensors {
			got[name] = x.Shape
		}
		if !maps.EqualFunc(got, want, slices.Equal[[]int]) {
			t.Errorf("found %v, expected %v", got, want)
		}
	}
}

// TestMFluxAgain checks that T5's table is in every block.
func TestMFluxAgain(t *testing.T) {
	names := []string{"shared.weight"}
	for _, block := range []string{"0", "1", "2"} {
		names = append(names, "t5_blocks."+block+".attention.layer_norm.weight")
	}
	again := component.T5EncoderModel.MFlux[0].Repeated(names)
	for _, list := range again {
		slices.Sort(list)
	}
	const bias = ".attention.SelfAttention.relative_attention_bias.weight"
	if !slices.Equal(again["t5_blocks.0"+bias], []string{"t5_blocks.1" + bias, "t5_blocks.2" + bias}) || len(again) != 1 {
		t.Errorf("found %v", again)
	}
	if len(component.CLIPTextModel.MFlux[0].Repeated(names)) != 0 {
		t.Error("CLIP has nothing twice")
	}
}
