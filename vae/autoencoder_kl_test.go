package vae_test

import (
	"context"
	"fmt"
	"image"
	_ "image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/vae"
)

const goldens = "../models/testdata"

func loadKL(fsys checkpoint.Folder, points *hooks.Points) (*vae.KL, error) {
	c := vae.DefaultKLConfig()
	if err := checkpoint.ReadJSON(fsys, "vae/config.json", &c); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, "vae")
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	m := vae.NewKL(c)
	return m, nn.Load(m, ck, nn.LoadOptions{Name: "vae", Points: points, Dtype: mlx.Float32})
}

// readImage reads a PNG as [1, 3, H, W] from -1 to 1.
func readImage(t *testing.T, name string) *mlx.Array {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, _, err := image.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	b := img.Bounds()
	var data []float32
	for c := range 3 {
		for y := range b.Dy() {
			for x := range b.Dx() {
				r, g, b, _ := img.At(x, y).RGBA()
				data = append(data, float32([]uint32{r, g, b}[c]>>8)/127.5-1)
			}
		}
	}
	return mlx.FromFloat32(data, 1, 3, b.Dy(), b.Dx())
}

// compare compares a tensor with the reference's or, if the dump has only samples of it,
// with these.
func compare(t *testing.T, ref *parity.Run, name string, got *mlx.Array) (found bool) {
	t.Helper()
	values := got.Floats()
	want := ref.Array(name)
	shape := got.Shape()
	switch positions := ref.Array(name + ":positions"); {
	case positions != nil:
		want = ref.Array(name + ":samples")
		whole := values
		values = nil
		for _, at := range positions.Int32s() {
			values = append(values, whole[at])
		}
		if !slices.Equal(shape, ref.Shapes[name]) {
			t.Errorf("%s: shape %v, expected %v", name, shape, ref.Shapes[name])
		}
	case want == nil:
		return false
	case !slices.Equal(shape, want.Shape()):
		t.Errorf("%s: shape %v, expected %v", name, shape, want.Shape())
		return true
	}
	d := report.Compare(values, want.Floats())
	t.Logf("%s: %v", name, d)
	if !d.Within(report.Float32) {
		t.Errorf("%s: %v", name, d)
	}
	return true
}

func TestAgainstDiffusers(t *testing.T) {
	tests := []struct {
		model, dump string
		encode      bool
		force       bool // replace our tensors by the reference's
		least       int  // tensors that must be compared
	}{
		{"zimage-ordinary", "encode", true, true, 57},
		{"zimage-ordinary", "encode", true, false, 57},
		{"vae-512", "encode", true, false, 2},
		{"vae-512", "decode", false, false, 5},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s/%s/force=%v", test.model, test.dump, test.force), func(t *testing.T) {
			err := mlx.Do(context.Background(), func() error {
				fsys, err := checkpoint.OpenFolder(filepath.Join(goldens, test.model, "model"))
				if err != nil {
					return err
				}
				dump := filepath.Join(goldens, test.model, test.dump)
				ref, err := parity.OpenRun(os.DirFS(dump))
				if err != nil {
					return err
				}
				compared := 0
				points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
					name := tap.FullName()
					if compare(t, ref, name, tap.Output) {
						compared++
					}
					if test.force {
						return ref.Array(name), nil
					}
					return nil, nil
				}}
				m, err := loadKL(fsys, points)
				if err != nil {
					return err
				}
				if test.encode {
					x := readImage(t, filepath.Join(dump, "picture.png"))
					if compare(t, ref, "vae.encode.out", m.Encode(x)) {
						compared++
					}
				} else if compare(t, ref, "vae.decode.out", m.Decode(ref.Array("vae.decode.in"))) {
					compared++
				}
				if compared < test.least {
					t.Errorf("%d tensors compared, expected %d or more", compared, test.least)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
