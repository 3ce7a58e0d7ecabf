package vae

import (
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestCompiledTiny checks that a compiled decoder computes what the decoder does.
func TestCompiledTiny(t *testing.T) {
	mlxtest.Do(t, func() {
		fsys, err := checkpoint.OpenFolder("testdata")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"tiny-thin", "tiny-pool"} {
			m, err := load(fsys, name)
			if err != nil {
				t.Fatal(err)
			}
			z := pattern(append([]int{2}, m.Unscaled(4, 6)...)...)
			want := m.Decode(z).Floats()
			for _, mode := range []mlx.CompileMode{mlx.Unfused, mlx.Fused} {
				run, free := mlx.CompileUntil(mode, func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{m.Decode(in[0])} })
				most, l2 := difference(run([]*mlx.Array{z})[0].Floats(), want)
				free()
				t.Logf("%s, mode %d: off by %.2g, %.2g altogether", name, mode, most, l2)
				if !(most < 4e-6 && l2 < 2e-6) {
					t.Errorf("%s, mode %d: off by %.2g, %.2g altogether", name, mode, most, l2)
				}
			}
		}
	})
}

// TestTinyConfig checks that unsupported configs are refused by the name of the field.
func TestTinyConfig(t *testing.T) {
	for want, change := range map[string]func(*TinyConfig){
		`act_fn "gelu", expected relu`:                                                   func(c *TinyConfig) { c.ActFn = "gelu" },
		`in_channels 4 and out_channels 3, expected 3`:                                   func(c *TinyConfig) { c.InChannels = 4 },
		`upsample_fn "bilinear" and upsampling_scaling_factor 2, expected nearest and 2`: func(c *TinyConfig) { c.UpsampleFn = "bilinear" },
		`decoder_block_out_channels [256 128 64 64]: expected equal widths, 1 to 1048576`: func(c *TinyConfig) {
			c.DecoderBlockOutChannels = []int{256, 128, 64, 64}
		},
		`num_encoder_blocks [1 3 -1 3]: expected 0 to 1000`: func(c *TinyConfig) { c.NumEncoderBlocks = []int{1, 3, -1, 3} },
		`decoder_block_out_channels [64 64 64 64] and num_decoder_blocks [3 1]: expected as many of both, 1 to 10`: func(c *TinyConfig) {
			c.NumDecoderBlocks = []int{3, 1}
		},
		`encoder_block_out_channels [64 64], expected as many as decoder_block_out_channels [64 64 64 64]`: func(c *TinyConfig) {
			c.EncoderBlockOutChannels, c.NumEncoderBlocks = []int{64, 64}, []int{1, 3}
		},
		`latent_channels 0: expected 1 to 1048576`: func(c *TinyConfig) { c.LatentChannels = 0 },
		`patch_size 3, expected 1 or 2`:            func(c *TinyConfig) { c.PatchSize = 3 },
		`scaling_factor 0: must not be zero`:       func(c *TinyConfig) { c.ScalingFactor = 0 },
	} {
		c := DefaultTinyConfig()
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("error %v, expected %s", err, want)
		}
	}
}

// TestDecoderAlone checks that a model without an encoder decodes, and that encoding is an error.
func TestDecoderAlone(t *testing.T) {
	c := DefaultTinyConfig()
	c.EncoderBlockOutChannels, c.NumEncoderBlocks, c.DecoderBlockOutChannels = nil, nil, []int{4, 4, 4, 4}
	mlxtest.Do(t, func() {
		m := NewTiny(c)
		fill(m, mlx.Float32)
		mlxtest.Same(t, "shape", m.Decode(mlxtest.Randn(1, 1, 4, 2, 3)).Shape(), []int{1, 3, 16, 24})
	})
	err := mlx.Do(t.Context(), func() error { NewTiny(c).Encode(mlx.Zeros(mlx.Float32, 1, 3, 16, 24)); return nil })
	if err == nil || err.Error() != "the autoencoder has a decoder, but no encoder" {
		t.Errorf("error %v", err)
	}
}
