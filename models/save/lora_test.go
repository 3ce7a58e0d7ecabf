package save_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/models/save"
)

// TestLoRA bakes a LoRA before weights are quantized, and into weights that
// are quantized already with eight bits.
func TestLoRA(t *testing.T) {
	dir := modeltest.Wide(t, "zimage-small")
	const layer = "layers.0.attention.to_q"
	file := filepath.Join(t.TempDir(), "lora.safetensors")
	var list []*checkpoint.Array
	for name, shape := range map[string][]int{"lora_A": {4, 128}, "lora_B": {128, 4}} {
		x := &checkpoint.Array{Name: "transformer." + layer + "." + name + ".weight", Dtype: checkpoint.F32, Shape: shape}
		for _, v := range mlxtest.Random(uint64(len(name)+shape[0]), 4*128) {
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v/4))
		}
		list = append(list, x)
	}
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
	loras := []lora.Spec{{Path: file, Scale: 0.75}}
	q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	mlxtest.Do(t, func() {
		plain := latentsWith(t, dir, models.LoadOptions{})
		for _, o := range []save.Options{{LoRAs: loras}, {LoRAs: loras, Quantize: q}} {
			saved, report := saveNew(t, dir, o)
			got := latentsWith(t, saved, models.LoadOptions{})
			if want := latentsWith(t, dir, models.LoadOptions{LoRAs: loras, Quantize: o.Quantize}); !slices.Equal(got, want) ||
				slices.Equal(got, plain) {
				t.Errorf("%v: what was saved makes something else", o.Quantize)
			}
			if len(report.LoRAs) != 1 || report.LoRAs[0].Modules["transformer"] != 1 {
				t.Errorf("%+v", report.LoRAs)
			}
		}
		packed, _ := saveNew(t, dir, save.Options{Quantize: q})
		saved, report := saveNew(t, packed, save.Options{LoRAs: loras})
		for _, l := range report.Layers {
			if changed := l.Name == layer; changed == l.Kept || changed && (l.Bits != 8 || !(l.Error > 0 && l.Error < 0.01)) {
				t.Errorf("%+v", l)
			}
		}
		// the result is nearly that of the LoRA computed at run time next to the quantized weights
		got, want := latentsWith(t, saved, models.LoadOptions{}), latentsWith(t, packed, models.LoadOptions{LoRAs: loras})
		a, b := mlx.FromFloat32(got), mlx.FromFloat32(want)
		if off := math.Sqrt(component.SumOfSquares(a.Sub(b)) / component.SumOfSquares(b)); !(off < 0.02) {
			t.Errorf("off by %g from the LoRA beside the weights", off)
		}
		var about struct {
			LoRAs []struct {
				Source string
				Scale  float64
				SHA256 string
			}
		}
		if err := json.Unmarshal(read(t, filepath.Join(saved, "mflux_model.json")), &about); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(read(t, file))
		if len(about.LoRAs) != 1 || about.LoRAs[0].Source != "lora.safetensors" || about.LoRAs[0].Scale != 0.75 ||
			about.LoRAs[0].SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%+v", about.LoRAs)
		}
	})
}
