package component

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderKLQwenImage21 is the autoencoder of Qwen-Image-2.1, in the architecture of Wan 2.2,
// whose images have an alpha channel.
var AutoencoderKLQwenImage21 = &Class{
	Name: "AutoencoderKLQwenImage21", Library: "diffusers", Role: Autoencoder, Folder: Autoencoders,
	MFlux: []*layout.Table{{
		Signature:    []string{"decoder.up_blocks.0.upsampler.resample.1.weight", "decoder.mid_block.attentions.0.norm.gamma"},
		Metadata:     mfluxKey, // since the names are diffusers' own
		Rules:        mfluxQwen21VAE(),
		ChannelsLast: true,
	}},
	Original:       wan22Tables(),
	Infer:          inferKLQwenImage21,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultKLQwenImage21Config, vae.NewKLQwenImage21),
	LatentKey:      "z_dim",
}

// mfluxQwen21VAE returns the rules for the norms. mflux stores them without axes of size 1.
func mfluxQwen21VAE() (rules []layout.Rule) {
	norm := func(module string, ones int) {
		rules = append(rules, layout.Rule{
			Other: module + ".gamma", Names: []string{module + ".gamma"},
			Transforms: slices.Repeat([]checkpoint.TransformOp{checkpoint.TransformExpand}, ones),
		})
	}
	for _, side := range []struct{ name, blocks string }{{"encoder", "down_blocks"}, {"decoder", "up_blocks"}} {
		norm(side.name+".norm_out", 3)
		norm(side.name+".mid_block.attentions.0.norm", 2)
		for _, n := range []string{"norm1", "norm2"} {
			norm(side.name+".mid_block.resnets.{}."+n, 3)
			norm(side.name+"."+side.blocks+".{}.resnets.{}."+n, 3)
		}
	}
	return rules
}

// wan22Tables returns the layouts of Wan 2.2, one for each number of blocks, and that of diffusers.
func wan22Tables() (tables []*layout.Table) {
	for blocks := 1; blocks <= 3; blocks++ {
		tables = append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Rules: wan22Rules(blocks), OneFrame: true, Signature: []string{
			"decoder.middle.0.residual.0.gamma", fmt.Sprintf("decoder.upsamples.0.upsamples.%d.resample.1.weight", blocks+1),
		}})
	}
	return append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Signature: []string{
		"decoder.up_blocks.0.upsampler.resample.1.weight", "decoder.mid_block.attentions.0.to_qkv.weight",
	}})
}

// wan22Rules returns the rules for the autoencoder of Wan 2.2 (wan/modules/vae2_2.py). Each level has
// a list with its residual blocks and, except for the last level, a resampling block.
func wan22Rules(blocks int) []layout.Rule {
	rules := wanEnds()
	for i := range blocks {
		rules = append(rules, layout.Under(fmt.Sprintf("encoder.downsamples.{}.downsamples.%d", i),
			fmt.Sprintf("encoder.down_blocks.{}.resnets.%d", i), wanResnet())...)
	}
	for i := range blocks + 1 {
		rules = append(rules, layout.Under(fmt.Sprintf("decoder.upsamples.{}.upsamples.%d", i),
			fmt.Sprintf("decoder.up_blocks.{}.resnets.%d", i), wanResnet())...)
	}
	return append(rules, layout.Rename(
		fmt.Sprintf("encoder.downsamples.{}.downsamples.%d", blocks), "encoder.down_blocks.{}.downsampler",
		fmt.Sprintf("decoder.upsamples.{}.upsamples.%d", blocks+1), "decoder.up_blocks.{}.upsampler",
	)...)
}

func inferKLQwenImage21(s *layout.Sizes, inferred, published map[string]any) {
	base := s.Dim("encoder.conv_in.weight", 0)
	inferred["base_dim"], inferred["z_dim"] = base, s.Dim("decoder.conv_in.weight", 1)
	inferred["in_channels"], inferred["out_channels"] = s.Dim("encoder.conv_in.weight", 1), s.Dim("decoder.conv_out.weight", 0)
	inferred["attn_scales"] = []float64{}
	inferred["num_res_blocks"] = s.Count("encoder.down_blocks.0.resnets")
	mults, temporal := []int{}, []bool{}
	for i := range s.Count("encoder.down_blocks") {
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		mults = append(mults, s.Divide("a level's width", s.Dim(name+".resnets.0.conv1.weight", 0), base))
		if s.Has(name + ".downsampler.resample.1.weight") {
			temporal = append(temporal, s.Has(name+".downsampler.time_conv.weight"))
		}
	}
	inferred["dim_mult"] = mults
	if n := len(mults); n > 0 {
		inferred["decoder_base_dim"] = s.Divide("the decoder's width", s.Dim("decoder.conv_in.weight", 0), mults[n-1])
	}
	if d := vae.DefaultKLQwenImage21Config().TemperalDownsample; len(d) == len(temporal) && !slices.Contains(temporal, true) {
		temporal = d // mflux may omit convolutions over time, which images do not need
	}
	published["temperal_downsample"] = temporal
}
