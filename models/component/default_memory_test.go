package component_test

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// TestDefaultBlockMemory finds in published models the blocks and heads that their configs
// tell, and takes a block for about as large as its class does, whose constants are fitted to small
// models and are a third off themselves in some sizes.
func TestDefaultBlockMemory(t *testing.T) {
	for _, test := range []struct {
		class *component.Class
		model any
		width int
	}{
		{component.FluxTransformer2DModel, transformer.NewFlux(transformer.DefaultFluxConfig()), 3072},
		{component.Flux2Transformer2DModel, transformer.NewFlux2(transformer.DefaultFlux2Config()), 6144},
		{component.ZImageTransformer2DModel, transformer.NewZImage(transformer.DefaultZImageConfig()), 3840},
		{component.QwenImageTransformer2DModel, transformer.NewQwenImage(transformer.DefaultQwenImageConfig()), 3072},
		{component.T5EncoderModel, textenc.NewT5Encoder(largeT5(), mlx.Float32), 4096},
		{component.CLIPTextModel, textenc.NewCLIPText(largeCLIP(), mlx.Float32), 768},
		{component.Qwen25VLForConditionalGeneration, textenc.NewQwen25VL(textenc.DefaultQwen25VLConfig(), true, mlx.Float32), 8192},
	} {
		want, got := test.class.Blocks(test.model), component.DefaultBlockMemory(test.model)
		if got.Blocks != want.Blocks || got.Heads != want.Heads {
			t.Errorf("%s has %d blocks of %d heads, expected %d of %d", test.class.Name, got.Blocks, got.Heads, want.Blocks, want.Heads)
		}
		if w := component.Width(test.model); w != test.width {
			t.Errorf("%s is %d wide, expected %d", test.class.Name, w, test.width)
		}
		if off := got.Live/want.Live - 1; math.Abs(off) > 0.35 {
			t.Errorf("%s: %g in a block, %g measured, which is off by %.2f", test.class.Name, got.Live, want.Live, off)
		}
	}
}

func largeT5() textenc.T5Config {
	c := textenc.DefaultT5Config()
	c.DModel, c.DFF, c.DKV, c.NumHeads, c.NumLayers = 4096, 10240, 64, 64, 24
	c.FeedForwardProj = "gated-gelu"
	return c
}

func largeCLIP() textenc.CLIPTextConfig {
	c := textenc.DefaultCLIPTextConfig()
	c.HiddenSize, c.IntermediateSize, c.NumAttentionHeads = 768, 3072, 12
	return c
}

// block is a block of no existing class, with all heads in one layer.
type block struct {
	Fused *nn.Linear `w:"fused"`
	Out   *nn.Linear `w:"out"`
}

func blocks(n, width int) (list []*block) {
	for range n {
		list = append(list, &block{nn.NewLinear(width, 7*width, false), nn.NewLinear(4*width, width, false)})
	}
	return list
}

func TestDefaultBlockMemoryOfOthers(t *testing.T) {
	const width = 256
	type model struct {
		Embed  *nn.Sequential `w:"embed"` // a list, but not of blocks
		Blocks []*block       `w:"blocks"`
		Few    []*block       `w:"few"`
		Narrow []*block       `w:"narrow"`
	}
	m := &model{Blocks: blocks(5, width), Few: blocks(2, width), Narrow: blocks(9, 64)}
	m.Embed = nn.NewSequential(nn.NewLinear(width, 9*width, false), nn.NewLinear(9*width, width, false))
	s := component.DefaultBlockMemory(m)
	if s.Blocks != 7 || s.Heads != width/64 || component.Width(m) != width || s.Scores != 1 {
		t.Errorf("%d wide: %+v", component.Width(m), s)
	}
	twice := &model{Blocks: blocks(5, 2*width)}
	if d := component.DefaultBlockMemory(twice); d.Live != 2*s.Live || d.Written != 2*s.Written || d.Read != 2*s.Read {
		t.Errorf("%+v, and twice as wide %+v", s, d)
	}
	for _, none := range []any{&struct{}{}, &model{}, &struct {
		Layer *nn.Linear `w:"layer"`
	}{nn.NewLinear(width, width, true)}} {
		if s := component.DefaultBlockMemory(none); s != (component.BlockMemory{}) || component.Width(none) != 0 {
			t.Errorf("a model without blocks has %+v", s)
		}
	}
}
