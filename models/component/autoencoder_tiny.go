package component

import (
	"fmt"
	"strconv"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/vae"
)

// AutoencoderTiny approximates the autoencoders of other classes: TAESD, TAEF1 and TAEF2.
var AutoencoderTiny = &Class{
	Name: "AutoencoderTiny", Library: "diffusers", Role: Autoencoder, Folder: Autoencoders, Standalone: true,
	Original:       tinyTables(),
	Infer:          inferTiny,
	Quantization:   []QuantizationRule{{"*", 16}},
	NewAutoencoder: newAutoencoder(vae.DefaultTinyConfig, vae.NewTiny),
	LatentKey:      "latent_channels",
}

// A TinyAutoencoder is a published AutoencoderTiny: a repository of the Hugging Face hub, and its file.
type TinyAutoencoder struct{ Repo, File string }

// tinyTables returns the layouts of a decoder alone, as the makers of TAESD and ComfyUI store it, and of
// diffusers. The former number the layers of a Sequential with a first layer, the clamp, that diffusers'
// class has no module for.
func tinyTables() []*layout.Table {
	const most = 64 // layers; published decoders have 19
	var shifted []string
	for i := 1; i < most; i++ {
		shifted = append(shifted, strconv.Itoa(i), fmt.Sprintf("decoder.layers.%d", i-1))
	}
	return []*layout.Table{
		{
			Prefixes: []string{"decoder.", "taesd_decoder."}, Rules: layout.Rename(shifted...),
			Signature: []string{"1.weight", "3.conv.0.weight", "3.conv.4.weight"},
		},
		{
			Prefixes:  autoencoderPrefixes,
			Signature: []string{"decoder.layers.0.weight", "decoder.layers.2.conv.0.weight", "decoder.layers.2.conv.4.weight"},
		},
	}
}

// inferTiny infers the levels of decoder and encoder from the kinds of their layers. A file without an
// encoder is a decoder alone.
func inferTiny(s *layout.Sizes, inferred, published map[string]any) {
	const decoder, encoder = "decoder.layers", "encoder.layers"
	inferred["decoder_block_out_channels"], inferred["num_decoder_blocks"] = tinyLevels(s, decoder, 2)
	inferred["latent_channels"] = s.Dim(decoder+".0.weight", 1)
	inferred["out_channels"] = s.Dim(fmt.Sprintf("%s.%d.weight", decoder, s.Count(decoder)-1), 0)
	inferred["encoder_block_out_channels"], inferred["num_encoder_blocks"] = []int{}, []int{}
	if s.Has(encoder + ".0.weight") {
		inferred["encoder_block_out_channels"], inferred["num_encoder_blocks"] = tinyLevels(s, encoder, 1)
		inferred["in_channels"] = s.Dim(encoder+".0.weight", 1)
	}
	if s.Has(decoder + ".2.pool.0.weight") { // TAEF2, for the patches of FLUX.2
		inferred["use_midblock_gn"], published["patch_size"] = true, 2
	}
}

// tinyLevels returns the widths of the levels of a list of layers, and the number of blocks in each.
// The layers from an index on are blocks, a convolution at the end of each level, and layers without
// tensors before it.
func tinyLevels(s *layout.Sizes, list string, first int) (widths, blocks []int) {
	width, n := s.Dim(list+".0.weight", 0), 0
	for i := first; i < s.Count(list); i++ {
		name := fmt.Sprintf("%s.%d", list, i)
		switch {
		case s.Has(name + ".conv.0.weight"):
			width, n = s.Dim(name+".conv.0.weight", 0), n+1
		case s.Has(name + ".weight"):
			widths, blocks, n = append(widths, width), append(blocks, n), 0
		}
	}
	return widths, blocks
}
