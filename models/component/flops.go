package component

import (
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx/nn"
)

// FLOPs are counted as two per multiply-accumulate (MAC) in linear layers and
// attention. Norms, activations and rotary embeddings are left out, as is common.

// timeFeatures is the size of a sinusoidal timestep embedding.
const timeFeatures = 256

// jointMACs returns the MACs of blocks of width d with joint attention over image and
// text tokens, and feed-forwards with a number of matrices of size d × hidden.
func jointMACs(d, hidden float64, image, text, blocks, matrices int) float64 {
	tokens := float64(image + text)
	return float64(blocks) * (tokens*(4*d*d+float64(matrices)*d*hidden) + 2*tokens*tokens*d)
}

// endMACs returns the MACs of the layers before and after the blocks, for image tokens of in
// channels and predictions of out channels.
func endMACs(d float64, in, out, textDim, image, text int) float64 {
	return float64(image)*float64(in+out)*d + float64(text)*float64(textDim)*d + 2*d*d
}

// DecodeFLOPs returns the FLOPs of an autoencoder whose decoder gets an input of h×w: those of the
// convolutions of its decoder, and of the attention between the pixels of that input. A level of the
// decoder doubles both sides at its end, except the last one.
func DecodeFLOPs(autoencoder any, h, w int) float64 {
	pixels, macs := float64(h)*float64(w), 0.0
	params := nn.Parameters(autoencoder)
	levels := 0
	for _, p := range params {
		if level, _, ok := upBlock(p.Name); ok {
			levels = max(levels, level+1)
		}
	}
	for _, p := range params {
		shape := p.Shape()
		decodes := strings.HasPrefix(p.Name, "decoder.") || strings.HasPrefix(p.Name, "post_quant_conv.")
		if !decodes || len(shape) < 2 || strings.HasSuffix(p.Name, ".gamma") {
			continue
		}
		at := pixels // where the weight is applied
		if level, rest, ok := upBlock(p.Name); ok {
			if strings.HasPrefix(rest, "upsampler") {
				level++
			}
			at *= float64(int(1) << (2 * level))
		} else if strings.HasPrefix(p.Name, "decoder.conv_out.") {
			at *= float64(int(1) << (2 * (levels - 1)))
		}
		weights := 1.0
		for _, d := range shape {
			weights *= float64(d)
		}
		macs += at * weights
		if strings.HasSuffix(p.Name, ".to_q.weight") || strings.HasSuffix(p.Name, ".to_qkv.weight") {
			macs += 2 * pixels * pixels * float64(shape[1])
		}
	}
	return 2 * macs
}

// upBlock splits the name of a decoder's parameter into its level and the rest.
func upBlock(name string) (level int, rest string, ok bool) {
	after, ok := strings.CutPrefix(name, "decoder.up_blocks.")
	if !ok {
		return 0, "", false
	}
	number, rest, _ := strings.Cut(after, ".")
	level, err := strconv.Atoi(number)
	return level, rest, err == nil
}
