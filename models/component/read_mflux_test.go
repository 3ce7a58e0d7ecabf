package component_test

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// TestReadMFlux reads parts of models that mflux saved: a transformer with layers
// of 4 and of 8 bits, and a T5 with 3, whose embeddings and table of positions are
// quantized too. They were made by
//
//	scripts/reference/run.sh mflux-golden models/component/testdata/mflux
func TestReadMFlux(t *testing.T) {
	fsys, err := checkpoint.OpenFolder("testdata/mflux")
	if err != nil {
		t.Fatal(err)
	}
	config := transformer.DefaultQwenImageConfig()
	t5 := textenc.DefaultT5Config()
	for name, c := range map[string]any{"transformer": &config, "text_encoder_2": &t5} {
		if err := checkpoint.ReadJSON(fsys, name+"/config.json", c); err != nil {
			t.Fatal(err)
		}
	}
	encoder := textenc.NewT5Encoder(t5, mlx.Float32)
	for _, c := range []struct {
		component.Component
		bits map[int]int // how many layers have so many
	}{
		{component.Component{Name: "transformer", Dir: "transformer", Class: component.QwenImageTransformer2DModel,
			Model: transformer.NewQwenImage(config)}, map[int]int{4: 19, 8: 1}},
		{component.Component{Name: "text_encoder_2", Dir: "text_encoder_2", Class: component.T5EncoderModel, Model: encoder,
			Ignore: encoder.Unused()}, map[int]int{3: 16}},
	} {
		ck, err := c.Open(fsys)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		var expected map[string]string // SHA-256 of the values in float32
		if err := checkpoint.ReadJSON(fsys, c.Dir+"/expected.json", &expected); err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			if err := nn.Load(c.Model, ck, nn.LoadOptions{Name: c.Name, Dtype: mlx.Float32, Ignore: c.Ignore}); err != nil {
				mlx.Throw(err)
			}
			bits := map[int]int{}
			for _, p := range nn.Parameters(c.Model) {
				name := strings.Replace(p.Name, "encoder.embed_tokens.", "shared.", 1)
				sum := sha256.Sum256(p.As(mlx.Float32).Bytes())
				if got := hex.EncodeToString(sum[:]); got != expected[name] {
					t.Errorf("%s: %s is not what mflux has", c.Dir, name)
				}
				delete(expected, name)
				if q := p.Quantization(); q != nil {
					bits[q.Bits]++
				}
			}
			if len(expected) > 0 || !maps.Equal(bits, c.bits) {
				t.Errorf("%s: layers by bits %v, expected %v; not there: %q", c.Dir, bits, c.bits, slices.Collect(maps.Keys(expected)))
			}
		})
	}
}
