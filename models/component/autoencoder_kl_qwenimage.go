package component

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderKLQwenImage is the autoencoder of Qwen-Image, which is Wan's.
var AutoencoderKLQwenImage = &Class{
	Name: "AutoencoderKLQwenImage", Library: "diffusers", Role: Autoencoder, Folder: Autoencoders,
	MFlux: []*layout.Table{{
		Signature:    []string{"decoder.conv_in.conv3d.weight", "decoder.up_block0.resnets.0.conv1.conv3d.weight"},
		Rules:        mfluxQwenVAE(),
		ChannelsLast: true,
	}},
	Original:     wanTables(),
	Infer:        inferKLQwenImage,
	Quantization: []QuantizationRule{{"*", 16}},
	NewAutoencoder: func(read func(vae.Config) error) (vae.Autoencoder, error) {
		c := vae.DefaultKLQwenImageConfig()
		if err := read(&c); err != nil {
			return nil, err
		}
		return vae.NewKLQwenImage(c), nil
	},
	LatentKey: "z_dim",
}

// wanTables are those of the names of Wan, for every number of levels and blocks,
// and of diffusers' own.
func wanTables() (tables []*layout.Table) {
	for levels := maxLevels; levels > 1; levels-- {
		for blocks := 1; blocks <= 3; blocks++ {
			tables = append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Rules: wanRules(levels, blocks), Signature: []string{
				"decoder.middle.0.residual.0.gamma",
				fmt.Sprintf("decoder.upsamples.%d.resample.1.weight", blocks+1),
				fmt.Sprintf("decoder.upsamples.%d.residual.0.gamma", levels*(blocks+2)-2),
			}})
		}
	}
	return append(tables, &layout.Table{Prefixes: autoencoderPrefixes, Signature: []string{
		"decoder.up_blocks.0.resnets.0.norm1.gamma", "decoder.mid_block.attentions.0.to_qkv.weight",
	}})
}

// wanRules are those of Wan's autoencoder (wan/modules/vae.py), of which
// Qwen-Image has one: the blocks of all levels of a side, some residual ones and
// one between levels, are in one list.
func wanRules(levels, blocks int) []layout.Rule {
	resnet := layout.Rename(
		"residual.0", "norm1", "residual.2", "conv1", "residual.3", "norm2", "residual.6", "conv2", "shortcut", "conv_shortcut",
	)
	resample := layout.Rename("resample.1", "resample.1", "time_conv", "time_conv")
	rules := slices.Concat(
		layout.Rename("conv1", "quant_conv", "conv2", "post_quant_conv"),
		layout.Under("encoder.downsamples.{}", "encoder.down_blocks.{}", resnet, resample),
	)
	for _, side := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			layout.Rename(side+".conv1", side+".conv_in", side+".head.0", side+".norm_out", side+".head.2", side+".conv_out"),
			layout.Under(side+".middle.0", side+".mid_block.resnets.0", resnet),
			layout.Rename(side+".middle.1", side+".mid_block.attentions.0"),
			layout.Under(side+".middle.2", side+".mid_block.resnets.1", resnet),
		)
	}
	at := 0
	for level := range levels {
		for i := range blocks + 1 {
			rules = append(rules, layout.Under(fmt.Sprintf("decoder.upsamples.%d", at), fmt.Sprintf("decoder.up_blocks.%d.resnets.%d", level, i), resnet)...)
			at++
		}
		if level < levels-1 {
			rules = append(rules, layout.Under(fmt.Sprintf("decoder.upsamples.%d", at), fmt.Sprintf("decoder.up_blocks.%d.upsamplers.0", level), resample)...)
			at++
		}
	}
	return rules
}

// mfluxQwenVAE are the rules of an autoencoder whose levels are of two residual
// blocks in the encoder: mflux numbers them by level, diffusers one after the
// other.
func mfluxQwenVAE() (rules []layout.Rule) {
	norm := func(module string, ones int) layout.Rule {
		forms := slices.Repeat([]checkpoint.FormOp{checkpoint.FormExpand}, ones)
		return layout.Rule{Other: module + ".weight", Names: []string{module + ".gamma"}, Forms: forms}
	}
	block := slices.Concat(layout.Rename(
		"conv1.conv3d", "conv1",
		"conv2.conv3d", "conv2",
		"skip_conv.conv3d", "conv_shortcut",
	), []layout.Rule{norm("norm1", 3), norm("norm2", 3)})
	sample := layout.Rename("resample_conv", "resample.1", "time_conv.conv3d", "time_conv")

	rules = layout.Rename("quant_conv.conv3d", "quant_conv", "post_quant_conv.conv3d", "post_quant_conv")
	for _, part := range []string{"encoder", "decoder"} {
		rules = slices.Concat(rules,
			layout.Rename(part+".conv_in.conv3d", part+".conv_in", part+".conv_out.conv3d", part+".conv_out"),
			[]layout.Rule{norm(part+".norm_out", 3), norm(part+".mid_block.attentions.0.norm", 2)},
			layout.Under(part+".mid_block.resnets.{}", part+".mid_block.resnets.{}", block),
		)
	}
	for i := range 11 {
		other := fmt.Sprintf("encoder.down_blocks.%d", i/3)
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		if i%3 == 2 {
			rules = append(rules, layout.Under(other+".downsamplers.0", name, sample)...)
		} else {
			rules = append(rules, layout.Under(fmt.Sprintf("%s.resnets.%d", other, i%3), name, block)...)
		}
	}
	return slices.Concat(rules,
		layout.Under("decoder.up_block{}.resnets.{}", "decoder.up_blocks.{}.resnets.{}", block),
		layout.Under("decoder.up_block{}.upsamplers.0", "decoder.up_blocks.{}.upsamplers.0", sample),
	)
}

func inferKLQwenImage(s *layout.Sizes, told, published map[string]any) {
	base := s.Dim("encoder.conv_in.weight", 0)
	told["base_dim"], told["z_dim"] = base, s.Dim("decoder.conv_in.weight", 1)
	told["input_channels"] = s.Dim("encoder.conv_in.weight", 1)
	told["attn_scales"] = []float64{}
	mults, temporal, blocks := []int{}, []bool{}, 0
	for i := range s.Count("encoder.down_blocks") {
		name := fmt.Sprintf("encoder.down_blocks.%d", i)
		switch {
		case s.Has(name + ".resample.1.weight"):
			temporal = append(temporal, s.Has(name+".time_conv.weight"))
		case len(mults) == len(temporal): // the first of a level
			mults = append(mults, s.Over("a level's width", s.Dim(name+".conv1.weight", 0), base))
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
