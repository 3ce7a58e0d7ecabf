package models_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

// testModel returns the folder of a tiny model.
func testModel(name string) string { return filepath.Join("testdata", name, "model") }

// imageOf returns an image of a model.
func pictureOf(t *testing.T, fsys fs.FS) []byte {
	t.Helper()
	var pixels []byte
	mlxtest.Do(t, func() {
		p, err := models.Load(fsys, models.LoadOptions{})
		if err == nil {
			defer p.Close()
			size := 2 * p.Multiple()
			var r *models.Result
			if r, err = p.Generate(models.Request{Prompt: "a red square", Steps: 2, Seed: 7, Height: size, Width: size,
				MaxSequenceLength: 40, Guidance: p.Defaults.Guidance}); err == nil {
				pixels = r.Image.Pix
			}
		}
		if err != nil {
			mlx.Throw(err)
		}
	})
	return pixels
}

// completed returns the model of a file or a folder and a base.
func completed(t *testing.T, name, base string) fs.FS {
	t.Helper()
	s, err := catalog.FindWith(name, base)
	if err != nil {
		t.Fatal(err)
	}
	return s.FS
}

// TestSingleFile opens files in the layout of the models' makers, with one and with all components,
// and checks that they generate the same images as diffusers' folders, bit for bit.
func TestSingleFile(t *testing.T) {
	for _, model := range modeltest.Singles() {
		t.Run(model.Name, func(t *testing.T) {
			base := testModel(model.Name)
			want := pictureOf(t, os.DirFS(base))
			bare, comfy, all := modeltest.SingleFiles(t, base)
			for _, path := range []string{bare, comfy, all} {
				if got := pictureOf(t, completed(t, path, base)); !bytes.Equal(got, want) {
					t.Errorf("%s: makes another picture than %s", path, base)
				}
			}
		})
	}
}

// TestEightBits opens a file of 8-bit floats with and without scales, and checks that it generates
// the same image as a file with the numbers that they represent.
func TestEightBits(t *testing.T) {
	base, dir := testModel("flux1-dev-small"), t.TempDir()
	for _, scaled := range []bool{false, true} {
		a, b := filepath.Join(dir, "packed.safetensors"), filepath.Join(dir, "plain.safetensors")
		plain := modeltest.WriteEightBits(t, a, modeltest.Original(t, base+"/transformer"), scaled)
		modeltest.Write(t, b, nil, map[string]map[string]*checkpoint.Array{"": plain})
		var pictures [][]byte
		for _, path := range []string{a, b} {
			pictures = append(pictures, pictureOf(t, completed(t, path, base)))
		}
		if !bytes.Equal(pictures[0], pictures[1]) {
			t.Errorf("scaled %v: two pictures", scaled)
		}
	}
}

// TestTransformerFolder opens the folder of a transformer, with and without a config, by itself and
// inside another folder.
func TestTransformerFolder(t *testing.T) {
	base := testModel("flux1-dev-small")
	want := pictureOf(t, os.DirFS(base))
	for _, test := range []struct {
		name   string
		config bool
	}{{".", true}, {".", false}, {"transformer", true}, {"transformer", false}} {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, test.name), os.DirFS(base+"/transformer")); err != nil {
			t.Fatal(err)
		}
		if !test.config {
			if err := os.Remove(filepath.Join(dir, test.name, "config.json")); err != nil {
				t.Fatal(err)
			}
		}
		if got := pictureOf(t, completed(t, dir, base)); !bytes.Equal(got, want) {
			t.Errorf("%+v: makes another picture than %s", test, base)
		}
	}
}

// TestMFluxFolder opens folders in mflux's layout.
func TestMFluxFolder(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	for _, model := range []string{"anima", "flux1-dev-small", "flux2-klein", "flux3-klein", "zimage-ordinary"} {
		t.Run(model, func(t *testing.T) {
			base := testModel(model)
			fsys := completed(t, modeltest.MFluxFolder(t, base), base)
			if got, want := pictureOf(t, fsys), pictureOf(t, os.DirFS(base)); !bytes.Equal(got, want) {
				t.Error("makes another picture")
			}
			mlxtest.Do(t, func() {
				if _, err := models.LoadAutoencoder(fsys, models.LoadOptions{}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestConvRot opens INT8 ConvRot files of ComfyUI, and checks that they generate the same images as
// files with the numbers that they represent. All scales are powers of 2, with which these numbers
// do not depend on the order of sums.
func TestConvRot(t *testing.T) {
	for _, model := range append(modeltest.Singles(), modeltest.Model{Name: "qwen-image-21"}) { // of which there is no file by its makers
		t.Run(model.Name, func(t *testing.T) {
			base, dir := testModel(model.Name), t.TempDir()
			packed, matrices := packInt8(t, modeltest.Original(t, base+"/transformer"))
			a, b := filepath.Join(dir, "packed.safetensors"), filepath.Join(dir, "plain.safetensors")
			modeltest.Write(t, a, nil, map[string]map[string]*checkpoint.Array{"model.diffusion_model.": packed})
			if info := inspect.Model(completed(t, a, base)); info.Packed != "int8_tensorwise" || info.Quantization != "" {
				t.Errorf("packed %q, quantized %q", info.Packed, info.Quantization)
			}
			plain := modeltest.Original(t, base+"/transformer")
			maps.Copy(plain, unpacked(t, a, matrices))
			modeltest.Write(t, b, nil, map[string]map[string]*checkpoint.Array{"": plain})
			if len(matrices) < 10 || !bytes.Equal(pictureOf(t, completed(t, a, base)), pictureOf(t, completed(t, b, base))) {
				t.Errorf("two pictures, with %d matrices", len(matrices))
			}
		})
	}
}

// packInt8 returns tensors with the matrices as rotated integers, and the names of these matrices.
func packInt8(t *testing.T, tensors map[string]*checkpoint.Array) (packed map[string]*checkpoint.Array, matrices []string) {
	packed = map[string]*checkpoint.Array{}
	for name, tensor := range tensors {
		module, ok := strings.CutSuffix(name, ".weight")
		if !ok || len(tensor.Shape) != 2 || tensor.Shape[1]%4 != 0 {
			packed[name] = tensor
			continue
		}
		rows, columns := tensor.Shape[0], tensor.Shape[1]
		group := 4
		for columns%(4*group) == 0 {
			group *= 4
		}
		config := fmt.Sprintf(`{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": %d}`, group)
		var scales []float32
		data := make([]byte, 0, rows*columns)
		values := tensor.Float32s()
		for row := range rows {
			scale := float32(math.Ldexp(1, -6-row%3))
			for _, v := range values[row*columns : (row+1)*columns] {
				data = append(data, byte(int8(max(-127, min(127, v/scale)))))
			}
			scales = append(scales, scale)
		}
		one, err := checkpoint.FromFloat32("", []int{rows, 1}, scales)
		if err != nil {
			t.Fatal(err)
		}
		packed[name] = &checkpoint.Array{Dtype: checkpoint.I8, Shape: tensor.Shape, Data: data}
		packed[module+".weight_scale"] = one
		packed[module+".comfy_quant"] = &checkpoint.Array{Dtype: checkpoint.U8, Shape: []int{len(config)}, Data: []byte(config)}
		matrices = append(matrices, name)
	}
	return packed, matrices
}

// unpacked returns the numbers of packed matrices as bfloat16.
func unpacked(t *testing.T, path string, names []string) map[string]*checkpoint.Array {
	f, err := checkpoint.Open(os.DirFS(filepath.Dir(path)), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ck, err := checkpoint.NewCheckpoint(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*checkpoint.Array{}
	for _, name := range names {
		tensor := ck.Tensors["model.diffusion_model."+name]
		for part, err := range ck.Parts(t.Context(), tensor, tensor.Len()) { // all of it
			if err == nil {
				part.Shape = tensor.Shape
				out[name], err = part.Cast(checkpoint.BF16)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}
