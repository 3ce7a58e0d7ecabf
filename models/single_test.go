package models_test

import (
	"bytes"
	"io/fs"
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
	for _, model := range []string{"flux1-schnell-ordinary", "flux1-dev-small", "flux2-klein", "zimage-ordinary", "qwen-image-ordinary"} {
		t.Run(model, func(t *testing.T) {
			base := testModel(model)
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
	values := checkpoint.EightBits(checkpoint.F8E4M3)
	nearest := func(v float32) (at byte) {
		for i, candidate := range values {
			if d := math.Abs(float64(candidate - v)); d < math.Abs(float64(values[at]-v)) { // false for NaN
				at = byte(i)
			}
		}
		return at
	}
	for _, scaled := range []bool{false, true} {
		packed := map[string]*checkpoint.Array{"scaled_fp8": {Dtype: checkpoint.BF16, Shape: []int{0}}}
		plain := map[string]*checkpoint.Array{}
		for name, tensor := range modeltest.Original(t, base+"/transformer") {
			module, ok := strings.CutSuffix(name, ".weight")
			if !ok || len(tensor.Shape) != 2 {
				packed[name], plain[name] = tensor, tensor
				continue
			}
			const scale = 0.0375 // no power of 2
			by := float32(1)
			if scaled {
				by = scale
				one, err := checkpoint.FromFloat32("", []int{}, []float32{scale})
				if err != nil {
					t.Fatal(err)
				}
				packed[module+".scale_weight"] = one
			}
			data, numbers := []byte{}, []float32{}
			for _, v := range tensor.Float32s() {
				b := nearest(v / by)
				data, numbers = append(data, b), append(numbers, values[b]*by)
			}
			whole, err := checkpoint.FromFloat32("", tensor.Shape, numbers)
			if err == nil {
				whole, err = whole.Cast(checkpoint.BF16)
			}
			if err != nil {
				t.Fatal(err)
			}
			packed[name], plain[name] = &checkpoint.Array{Dtype: checkpoint.U8, Shape: tensor.Shape, Data: data}, whole
		}
		a, b := filepath.Join(dir, "packed.safetensors"), filepath.Join(dir, "plain.safetensors")
		modeltest.Write(t, a, nil, map[string]map[string]*checkpoint.Array{"model.diffusion_model.": packed})
		modeltest.Write(t, b, nil, map[string]map[string]*checkpoint.Array{"": plain})
		modeltest.Retype(t, a, "U8", "F8_E4M3")
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
	for _, model := range []string{"flux1-dev-small", "flux2-klein", "zimage-ordinary"} {
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
