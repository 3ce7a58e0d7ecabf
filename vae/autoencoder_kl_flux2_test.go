package vae

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// load loads the autoencoder in a folder.
func load(fsys checkpoint.Folder, dir string) (Autoencoder, error) {
	var class struct {
		Name string `json:"_class_name"`
	}
	config := dir + "/config.json"
	if err := checkpoint.ReadJSON(fsys, config, &class); err != nil {
		return nil, err
	}
	read := func(c interface{ Validate() error }) error {
		if err := checkpoint.ReadJSON(fsys, config, c); err != nil {
			return err
		}
		return c.Validate()
	}
	var m Autoencoder
	switch class.Name {
	case "AutoencoderKLFlux2":
		c := DefaultKLFlux2Config()
		if err := read(&c); err != nil {
			return nil, err
		}
		m = NewKLFlux2(c)
	case "AutoencoderKLQwenImage":
		c := DefaultKLQwenImageConfig()
		if err := read(&c); err != nil {
			return nil, err
		}
		m = NewKLQwenImage(c)
	case "AutoencoderKLQwenImage21":
		c := DefaultKLQwenImage21Config()
		if err := read(&c); err != nil {
			return nil, err
		}
		m = NewKLQwenImage21(c)
	case "AutoencoderTiny":
		c := DefaultTinyConfig()
		if err := read(&c); err != nil {
			return nil, err
		}
		m = NewTiny(c)
	default:
		c := DefaultKLConfig()
		if err := read(&c); err != nil {
			return nil, err
		}
		m = NewKL(c)
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	return m, nn.Load(m, ck, nn.LoadOptions{Name: "vae", Dtype: mlx.Float32, Ignore: m.Unused()})
}

// pattern returns the input that testdata/make.py makes, with values from -1 to 1.
func pattern(shape ...int) *mlx.Array {
	values := make([]float32, mlxtest.Size(shape))
	for i := range values {
		values[i] = float32(float64((i*i*31+i*7)%251)/125 - 1)
	}
	return mlx.FromFloat32(values, shape...)
}

// TestClassesAgainstDiffusers compares with the goldens of testdata/make.py.
func TestClassesAgainstDiffusers(t *testing.T) {
	const sample = 23
	for _, test := range []struct {
		name          string
		height, width int
		budget        int64
	}{
		{"flux2-quant", 48, 80, 0},
		{"flux2-quant", 48, 80, 50e3},
		{"flux2-plain", 112, 208, 0},
		{"flux2-plain", 112, 208, 200e3},
		{"qwenimage-thin", 48, 80, 0},
		{"qwenimage-thin", 48, 80, 20e3},
		{"qwenimage-odd", 112, 208, 0},
		{"qwenimage-odd", 112, 208, 200e3},
		{"qwenimage21-thin", 48, 80, 0},
		{"qwenimage21-thin", 48, 80, 20e3},
		{"qwenimage21-odd", 112, 208, 0},
		{"qwenimage21-odd", 112, 208, 200e3},
		{"tiny-thin", 48, 80, 0},
		{"tiny-thin", 48, 80, 20e3},
		{"tiny-odd", 112, 208, 0},
		{"tiny-odd", 112, 208, 200e3},
		{"tiny-preview", 24, 40, 0},
		{"tiny-pool", 48, 80, 0},
		{"tiny-pool", 48, 80, 20e3},
	} {
		t.Run(fmt.Sprintf("%s/%d", test.name, test.budget), func(t *testing.T) {
			err := mlx.Do(context.Background(), func() error {
				fsys, err := checkpoint.OpenFolder("testdata")
				if err != nil {
					return err
				}
				m, err := load(fsys, test.name)
				if err != nil {
					return err
				}
				m.SetBudget(test.budget)
				want, err := mlx.LoadSafetensors(filepath.Join("testdata", test.name, "expected.safetensors"),
					[]string{"encoded", "scaled", "unscaled", "decoded"})
				if err != nil {
					return err
				}
				same := func(name string, got []float32) {
					t.Helper()
					w := want[name].Floats()
					if len(got) != len(w) {
						t.Fatalf("%s: %d values, expected %d", name, len(got), len(w))
					}
					most, l2 := difference(got, w)
					t.Logf("%s: off by %.2g, %.2g altogether", name, most, l2)
					if !(most < 4e-6 && l2 < 2e-6) { // diffusers' own float32 is off by 1.3e-6 and 1.1e-6
						t.Errorf("%s: off by %.2g, %.2g altogether", name, most, l2)
					}
				}
				encoded := m.Encode(pattern(1, m.ImageChannels(), test.height, test.width))
				mlxtest.Same(t, "shape of the latents", encoded.Shape(), want["encoded"].Shape())
				same("encoded", encoded.Floats())

				h, w := test.height/m.ScaleFactor(), test.width/m.ScaleFactor()
				shape := []int{1, m.LatentChannels(), h, w}
				scaled := m.Scale(want["encoded"])
				mlxtest.Same(t, "shape of what is scaled", scaled.Shape(), shape)
				same("scaled", scaled.Floats())
				one := m.Scale(want["encoded"].Squeeze(0))
				mlxtest.Same(t, "shape without a batch axis", one.Shape(), shape[1:])
				mlxtest.Same(t, "scaled without a batch axis", one.Floats(), scaled.Floats())

				given := pattern(shape...)
				unscaled := m.Unscale(given)
				mlxtest.Same(t, "shape of what is unscaled", unscaled.Shape(), append([]int{1}, m.Unscaled(h, w)...))
				same("unscaled", unscaled.Floats())
				one = m.Unscale(given.Squeeze(0))
				mlxtest.Same(t, "shape without a batch axis", one.Shape(), m.Unscaled(h, w))
				mlxtest.Same(t, "unscaled without a batch axis", one.Floats(), unscaled.Floats())

				image := m.Decode(want["unscaled"])
				mlxtest.Same(t, "shape of the image", image.Shape(), []int{1, m.ImageChannels(), test.height, test.width})
				var samples []float32
				for i, v := range image.Floats() {
					if i%sample == 0 {
						samples = append(samples, v)
					}
				}
				same("decoded", samples)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
