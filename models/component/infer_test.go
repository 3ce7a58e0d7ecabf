package component_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// TestInfer makes configs of the shapes of the published models, which are
// declared and not loaded, and compares them with the published ones.
func TestInfer(t *testing.T) {
	number := func(v float64) *float64 { return &v }

	dev := transformer.DefaultFluxConfig()
	dev.GuidanceEmbeds = true
	fill, predicted := dev, 64
	fill.InChannels, fill.OutChannels = 384, &predicted
	schnell := transformer.DefaultFluxConfig()
	klein4 := transformer.DefaultFlux2Config()
	klein4.NumLayers, klein4.NumSingleLayers, klein4.NumAttentionHeads, klein4.JointAttentionDim, klein4.GuidanceEmbeds = 5, 20,
		24, 7680, false
	klein9 := klein4
	klein9.NumLayers, klein9.NumSingleLayers, klein9.NumAttentionHeads, klein9.JointAttentionDim = 8, 24, 32, 12288
	zimage := transformer.DefaultZImageConfig()
	zimage.AxesLens = []int{1536, 512, 512}
	qwen := transformer.DefaultQwenImageConfig()
	krea2 := transformer.DefaultKrea2Config()
	ernie := transformer.DefaultErnieImageConfig()
	ernie.HiddenSize, ernie.NumAttentionHeads, ernie.NumLayers, ernie.FFNHiddenSize, ernie.TextInDim = 4096, 32, 36, 12288, 3072
	qwen21 := transformer.DefaultQwenImage21Config()
	qwen21.OutChannels = &qwen21.InChannels

	kl := vae.DefaultKLConfig()
	kl.BlockOutChannels, kl.LayersPerBlock, kl.LatentChannels = []int{128, 256, 512, 512}, 2, 16
	kl.DownBlockTypes = []string{"DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"}
	kl.UpBlockTypes = []string{"UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"}
	kl.UseQuantConv, kl.UsePostQuantConv, kl.ScalingFactor, kl.ShiftFactor = false, false, 0.3611, number(0.1159)
	kl2 := vae.DefaultKLFlux2Config()
	kl2.DecoderBlockOutChannels = kl2.BlockOutChannels
	qwenVAE := vae.DefaultKLQwenImageConfig()
	qwenVAE.AttnScales = []float64{}
	qwen21VAE := vae.DefaultKLQwenImage21Config()
	qwen21VAE.AttnScales = []float64{}
	taef1 := vae.DefaultTinyConfig()
	taef1.LatentChannels = 16
	taef2 := vae.DefaultTinyConfig()
	taef2.LatentChannels, taef2.UseMidblockGN, taef2.PatchSize = 32, true, 2
	decoder := taef1
	decoder.EncoderBlockOutChannels, decoder.NumEncoderBlocks = []int{}, []int{}

	clip := textenc.DefaultCLIPTextConfig()
	clip.HiddenSize, clip.IntermediateSize, clip.NumAttentionHeads, clip.EOSTokenID = 768, 3072, 12, 2
	t5 := textenc.DefaultT5Config()
	t5.DModel, t5.DFF, t5.NumLayers, t5.NumHeads, t5.FeedForwardProj = 4096, 10240, 24, 64, "gated-gelu"
	qwen3 := textenc.DefaultQwen3Config()
	qwen3.HiddenSize, qwen3.IntermediateSize, qwen3.NumHiddenLayers, qwen3.NumAttentionHeads, qwen3.NumKeyValueHeads = 2560, 9728, 36, 32, 8
	qwen3.RopeTheta = number(1e6)
	vl := textenc.DefaultQwen25VLConfig()
	kvHeads := 4
	vl.Text.HiddenSize, vl.Text.IntermediateSize, vl.Text.NumHiddenLayers, vl.Text.NumAttentionHeads,
		vl.Text.NumKeyValueHeads = 3584, 18944, 28, 28, &kvHeads
	vl.Text.RMSNormEps, vl.Text.RopeTheta = 1e-6, number(1e6)
	vl.Vision.HiddenSize = 1280

	qwen3VL := textenc.DefaultQwen3VLConfig()
	if err := json.Unmarshal([]byte(`{"text_config": {
		"head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
		"num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "vocab_size": 151936,
		"rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000
	}, "vision_config": {
		"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024, "in_channels": 3,
		"intermediate_size": 4096, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
		"spatial_merge_size": 2, "temporal_patch_size": 2
	}}`), &qwen3VL); err != nil {
		t.Fatal(err)
	}

	qwen3VL8 := textenc.DefaultQwen3VLConfig()
	if err := json.Unmarshal([]byte(`{"text_config": {
		"head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
		"num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "vocab_size": 151936,
		"rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000
	}, "vision_config": {"out_hidden_size": 4096}}`), &qwen3VL8); err != nil {
		t.Fatal(err)
	}

	type config interface{ Validate() error }
	for _, test := range []struct {
		name  string
		class *component.Class
		model any
		want  config
		got   config // with diffusers' defaults
	}{
		{"flux dev", component.FluxTransformer2DModel, transformer.NewFlux(dev), &dev, defaultOf(transformer.DefaultFluxConfig)},
		{"flux fill", component.FluxTransformer2DModel, transformer.NewFlux(fill), &fill, defaultOf(transformer.DefaultFluxConfig)},
		{"flux schnell", component.FluxTransformer2DModel, transformer.NewFlux(schnell), &schnell,
			defaultOf(transformer.DefaultFluxConfig)},
		{"klein 4B", component.Flux2Transformer2DModel, transformer.NewFlux2(klein4), &klein4, defaultOf(transformer.DefaultFlux2Config)},
		{"klein 9B", component.Flux2Transformer2DModel, transformer.NewFlux2(klein9), &klein9, defaultOf(transformer.DefaultFlux2Config)},
		{"Z-Image", component.ZImageTransformer2DModel, transformer.NewZImage(zimage), &zimage, defaultOf(transformer.DefaultZImageConfig)},
		{"Qwen-Image", component.QwenImageTransformer2DModel, transformer.NewQwenImage(qwen), &qwen,
			defaultOf(transformer.DefaultQwenImageConfig)},
		{"Qwen-Image-2.1", component.QwenImage21Transformer2DModel, transformer.NewQwenImage21(qwen21), &qwen21,
			defaultOf(transformer.DefaultQwenImage21Config)},
		{"Krea 2", component.Krea2Transformer2DModel, transformer.NewKrea2(krea2), &krea2, defaultOf(transformer.DefaultKrea2Config)},
		{"ERNIE-Image", component.ErnieImageTransformer2DModel, transformer.NewErnieImage(ernie), &ernie,
			defaultOf(transformer.DefaultErnieImageConfig)},
		{"FLUX.1's vae", component.AutoencoderKL, vae.NewKL(kl), &kl, defaultOf(vae.DefaultKLConfig)},
		{"FLUX.2's vae", component.AutoencoderKLFlux2, vae.NewKLFlux2(kl2), &kl2, defaultOf(vae.DefaultKLFlux2Config)},
		{"Qwen-Image's vae", component.AutoencoderKLQwenImage, vae.NewKLQwenImage(qwenVAE), &qwenVAE,
			defaultOf(vae.DefaultKLQwenImageConfig)},
		{"Qwen-Image-2.1's vae", component.AutoencoderKLQwenImage21, vae.NewKLQwenImage21(qwen21VAE), &qwen21VAE,
			defaultOf(vae.DefaultKLQwenImage21Config)},
		{"TAEF1", component.AutoencoderTiny, vae.NewTiny(taef1), &taef1, defaultOf(vae.DefaultTinyConfig)},
		{"TAEF2", component.AutoencoderTiny, vae.NewTiny(taef2), &taef2, defaultOf(vae.DefaultTinyConfig)},
		{"TAEF1's decoder", component.AutoencoderTiny, vae.NewTiny(decoder), &decoder, defaultOf(vae.DefaultTinyConfig)},
		{"CLIP", component.CLIPTextModel, textenc.NewCLIPText(clip, mlx.Float32), &clip, defaultOf(textenc.DefaultCLIPTextConfig)},
		{"T5", component.T5EncoderModel, textenc.NewT5Encoder(t5, mlx.Float32), &t5, defaultOf(textenc.DefaultT5Config)},
		{"Qwen3", component.Qwen3Model, textenc.NewQwen3(qwen3, []int{36}, mlx.Float32), &qwen3, defaultOf(textenc.DefaultQwen3Config)},
		{"Qwen2.5-VL", component.Qwen25VLForConditionalGeneration, textenc.NewQwen25VL(vl, true, mlx.Float32), &vl,
			defaultOf(textenc.DefaultQwen25VLConfig)},
		{"Qwen3-VL-8B", component.Qwen3VLForConditionalGeneration,
			textenc.NewQwen3VL(qwen3VL8, []int{36}, mlx.Float32).WithVision(), &qwen3VL8,
			defaultOf(textenc.DefaultQwen3VLConfig)},
		{"Qwen3-VL-4B", component.Qwen3VLForConditionalGeneration,
			textenc.NewQwen3VL(qwen3VL, []int{36}, mlx.Float32).WithVision(), &qwen3VL,
			defaultOf(textenc.DefaultQwen3VLConfig)},
	} {
		shapes := map[string][]int{}
		for _, p := range nn.Parameters(test.model) {
			shapes[p.Name] = p.Stored()
		}
		if test.want == config(&qwenVAE) { // of a video, which pictures do not need
			shapes["encoder.down_blocks.5.time_conv.weight"], shapes["encoder.down_blocks.8.time_conv.weight"] = nil, nil
		}
		c, err := layout.Infer(test.class.Name, test.class.Infer, shapes)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		all := maps.Clone(c.Published)
		maps.Copy(all, c.Inferred)
		data, err := json.Marshal(all)
		if err == nil {
			err = json.Unmarshal(data, test.got)
		}
		if err == nil {
			err = test.got.Validate()
		}
		if err != nil || !reflect.DeepEqual(test.got, test.want) {
			t.Errorf("%s: %v\nfound    %+v\nexpected %+v\nof %s", test.name, err, test.got, test.want, data)
		}
	}
}

func defaultOf[T any](f func() T) *T {
	c := f()
	return &c
}
