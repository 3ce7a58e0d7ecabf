package save_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/save"
)

// TestShards writes several files, tensors in parts, and mflux's names and
// metadata.
func TestShards(t *testing.T) {
	defer func(shard int64, rows int) { *save.MaxShard, *save.RowsBytes = shard, rows }(*save.MaxShard, *save.RowsBytes)
	*save.MaxShard, *save.RowsBytes = 100_000, 12_000
	dir := modeltest.Wide(t, "zimage-small")
	mlxtest.Do(t, func() {
		want := latentsWith(t, dir, models.LoadOptions{})
		for layout, names := range map[string][2]string{
			save.LayoutMFlux:     {"%d.safetensors", "model.safetensors.index.json"},
			save.LayoutDiffusers: {"diffusion_pytorch_model-%05d-of-%05d.safetensors", "diffusion_pytorch_model.safetensors.index.json"},
		} {
			saved, report := saveNew(t, dir, save.Options{Layout: layout})
			if got := latentsWith(t, saved, models.LoadOptions{}); !slices.Equal(got, want) {
				t.Errorf("%s: what was saved makes something else", layout)
			}
			files, _ := filepath.Glob(filepath.Join(saved, "transformer", "*.safetensors"))
			if len(files) < 3 || report.Files < len(files) {
				t.Fatalf("%s: %d files, %d in all", layout, len(files), report.Files)
			}
			for i := range files {
				name := fmt.Sprintf(names[0], i+1, len(files))
				if layout == save.LayoutMFlux {
					name = fmt.Sprintf(names[0], i)
				}
				f, err := checkpoint.Open(os.DirFS(filepath.Join(saved, "transformer")), name)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for _, tensor := range f.Header.Tensors {
					if size := int64(tensor.Dtype.Bits() / 8); (f.Header.DataOffset+tensor.Begin)%size != 0 {
						t.Errorf("%s: %s begins at byte %d", name, tensor.Name, tensor.Begin)
					}
				}
				want := map[string]string{"format": "pt"}
				if layout == save.LayoutMFlux {
					want = map[string]string{"quantization_level": "None", "mflux_version": "0.24.0"}
				}
				if !maps.Equal(f.Header.Metadata, want) {
					t.Errorf("%s: metadata %v", name, f.Header.Metadata)
				}
			}
			if layout == save.LayoutMFlux {
				q := &mlx.Quantization{Mode: "affine", Bits: 5, Group: 32}
				packed, _ := saveNew(t, dir, save.Options{Quantize: q})
				if got, want := latentsWith(t, packed, models.LoadOptions{}),
					latentsWith(t, dir, models.LoadOptions{Quantize: q}); !slices.Equal(got, want) {
					t.Error("what was quantized in parts makes something else")
				}
			}
			var index struct {
				Map map[string]string `json:"weight_map"`
			}
			if err := json.Unmarshal(read(t, filepath.Join(saved, "transformer", names[1])), &index); err != nil || len(index.Map) == 0 {
				t.Errorf("%s: %v", names[1], err)
			}
		}
	})
}

// TestDtypes saves float32 weights in several dtypes.
func TestDtypes(t *testing.T) {
	dir := modeltest.Wide(t, "zimage-small")
	file := filepath.Join(dir, "text_encoder", "model.safetensors")
	var list []*checkpoint.Array
	for _, x := range stored(t, dir, "text_encoder") {
		wide := &checkpoint.Array{Name: x.Name, Dtype: checkpoint.F32, Shape: x.Shape}
		for i := 0; i < len(x.Data); i += 2 {
			wide.Data = append(wide.Data, 1, 0, x.Data[i], x.Data[i+1]) // which bfloat16 does not hold
		}
		list = append(list, wide)
	}
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		for want, o := range map[checkpoint.Dtype]save.Options{checkpoint.BF16: {}, checkpoint.F16: {Dtype: new(mlx.Float16)},
			checkpoint.F32: {KeepDtypes: true}} {
			saved, _ := saveNew(t, dir, o)
			for _, x := range list {
				if got := stored(t, saved, "text_encoder")[x.Name]; got.Dtype != want {
					t.Errorf("%s is %s, expected %s", x.Name, got.Dtype, want)
				}
			}
			if x := stored(t, saved, "vae")["decoder.conv_in.bias"]; o.KeepDtypes && x.Dtype != checkpoint.BF16 {
				t.Errorf("%s is %s", x.Name, x.Dtype)
			}
		}
		// kept tensors are the same bit for bit, also with quantization
		q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
		for _, o := range []save.Options{{KeepDtypes: true}, {KeepDtypes: true, Quantize: q}} {
			saved, _ := saveNew(t, dir, o)
			if got, want := latentsWith(t, saved, models.LoadOptions{}),
				latentsWith(t, dir, models.LoadOptions{Quantize: o.Quantize}); !slices.Equal(got, want) {
				t.Errorf("%v: what was saved makes something else", o.Quantize)
			}
		}
	})
}
