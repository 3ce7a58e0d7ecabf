package component_test

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
)

// TestLanguageModel declares language models from their folders and loads them, quantized too.
func TestLanguageModel(t *testing.T) {
	fsys, err := checkpoint.OpenFolder("../../textenc/testdata")
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]struct {
		class      string
		tied, sees bool
		err        string
	}{
		"qwen3-head":         {class: "Qwen3Model"},
		"qwen3-published":    {class: "Qwen3Model", tied: true},
		"qwen25vl-published": {class: "Qwen2_5_VLForConditionalGeneration", sees: true},
		"qwen3vl-published":  {class: "Qwen3VLForConditionalGeneration", sees: true},
		"qwen35-head":        {class: "Qwen3_5ForConditionalGeneration", sees: true},
		"mistral3-head":      {class: "Mistral3ForConditionalGeneration"},
		"qwen3-small": {err: "qwen3-small: lacks lm_head.weight: these are the files of a text encoder, which cannot write text " +
			"(get the whole model, such as Qwen/Qwen3-4B"},
		"qwen3vl-small": {err: "such as Qwen/Qwen3-VL-4B-Instruct)"},
		"t5-gated":      {err: `architectures ["T5EncoderModel"], expected a language model (Qwen3_5ForConditionalGeneration, `},
		"absent":        {err: "absent/config.json"},
	} {
		mlxtest.Do(t, func() {
			loader := component.Loader{Folder: component.Folder{FS: fsys, Dtype: mlx.Float32}}
			c, m, err := loader.LanguageModel("text_encoder", dir)
			if want.err != "" {
				if err == nil || !strings.Contains(err.Error(), want.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: found %v, expected %q", dir, err, want.err)
				}
				return
			}
			if err != nil {
				t.Errorf("%s: %v", dir, err)
				return
			}
			if sees := m.Images() != nil; c.Class.Name != want.class || m.Tied() != want.tied || sees != want.sees {
				t.Errorf("%s: a %s, tied %v, sees %v; expected %+v", dir, c.Class.Name, m.Tied(), sees, want)
			}
			if blocks := c.Blocks(); blocks.Blocks < 2 || blocks.Live <= 0 {
				t.Errorf("%s: memory model %+v", dir, blocks)
			}
			ck, err := c.Open(fsys)
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			if err := loader.Load(c, ck); err != nil {
				t.Fatal(err)
			}
			ids := mlx.FromInt32([]int32{5, 6, 7}, 1, 3)
			whole := m.Forward(ids, nil, nil)
			mlxtest.Same(t, dir, whole.Shape(), []int{1, m.VocabSize()})
			if !whole.AllFinite() {
				t.Errorf("%s: logits are not finite", dir)
			}
			c.Unload()

			c.Random = checkpoint.BF16 // with random weights
			random, err := c.Open(fsys)
			if err == nil {
				err = loader.Load(c, random)
			}
			if err != nil || !m.Forward(ids, nil, nil).AllFinite() {
				t.Errorf("%s, random weights: %v", dir, err)
			}
			c.Unload()
		})
	}
}

// TestQuantizedLanguageModel checks that quantized weights give nearly the same logits, with the head tied
// or not.
func TestQuantizedLanguageModel(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, tied := range []bool{false, true} {
			c := textenc.DefaultQwen3Config()
			c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 80, 64, 128, 2
			c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.TieWordEmbeddings = 2, 1, 64, tied
			logits := func(q *mlx.Quantization) *mlx.Array {
				m := textenc.NewQwen3ForCausalLM(c, nil, mlx.Float32)
				part := component.Component{Class: component.Qwen3Model, Name: "text_encoder", Model: m, Random: checkpoint.BF16}
				loader := component.Loader{Folder: component.Folder{Dtype: mlx.Float32}, Quantize: q}
				ck, err := part.Open(nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := loader.Load(part, ck); err != nil {
					t.Fatal(err)
				}
				quantized := 0
				for _, p := range nn.Parameters(m) {
					if p.Quantization() != nil {
						quantized++
					}
				}
				if q != nil && quantized < 14 {
					t.Errorf("%d parameters are quantized", quantized)
				}
				cache := m.NewCache(1, 0)
				defer cache.Close()
				m.Forward(mlx.FromInt32([]int32{5, 6, 7, 79}, 1, 4), nil, cache)
				return m.Forward(mlx.FromInt32([]int32{1}, 1, 1), nil, cache)
			}
			want, got := logits(nil), logits(&mlx.Quantization{Mode: "affine", Bits: 8, Group: 64})
			difference := got.Sub(want).Abs().Max(1).Item() / want.Abs().Max(1).Item()
			t.Logf("tied %v: 8 bits are off by %.2g", tied, difference)
			if !(difference > 0 && difference < 0.03) {
				t.Errorf("tied %v: 8 bits are off by %.2g", tied, difference)
			}
		}
	})
}
