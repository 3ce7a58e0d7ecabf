package gomflux_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"image"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/nn"
	_ "github.com/gomflux/gomflux/models/shapes"
	"github.com/gomflux/gomflux/upscaler"
)

// writeNetwork writes a random network to a file. change may change a tensor.
func writeNetwork(t testing.TB, n upscaler.Network, change func(name string, values []float32)) string {
	t.Helper()
	var list []*checkpoint.Array
	for i, p := range nn.Parameters(n) {
		shape := p.Stored()
		values := mlxtest.Random(uint64(i), mlxtest.Size(shape))
		for j := range values {
			values[j] *= 0.3 / float32(math.Sqrt(float64(mlxtest.Size(shape[1:]))))
		}
		if change != nil {
			change(p.Name, values)
		}
		data, err := binary.Append(nil, binary.LittleEndian, values)
		if err != nil {
			t.Fatal(err)
		}
		a, err := checkpoint.NewArray(p.Name, checkpoint.F32, shape, data)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	file := filepath.Join(t.TempDir(), "network.safetensors")
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
	return file
}

func compact(channels, scale int) *upscaler.Compact {
	return upscaler.NewCompact(upscaler.CompactConfig{NumInCh: channels, NumOutCh: channels, NumFeat: 6, NumConv: 1, Upscale: scale})
}

// gradient is an image whose transparency rises from left to right if it is not opaque.
func gradient(w, h int, opaque bool) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			c := color.NRGBA{uint8(7 * x), uint8(9 * y), uint8(x * y), 255}
			if !opaque {
				c.A = uint8(255 * x / max(1, w-1))
			}
			img.SetNRGBA(x, y, c)
		}
	}
	return img
}

func openUpscaler(t testing.TB, name string, o *gomflux.OpenOptions) *gomflux.Upscaler {
	t.Helper()
	u, err := gomflux.OpenUpscaler(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	return u
}

// TestUpscale enlarges images of all kinds by networks of all kinds of channels.
func TestUpscale(t *testing.T) {
	for name, n := range map[string]*upscaler.Compact{"RGB": compact(3, 4), "RGBA": compact(4, 2), "gray": compact(1, 2)} {
		u := openUpscaler(t, writeNetwork(t, n, nil), nil)
		if u.Scale() != n.Scale() || u.Class() != "SRVGGNetCompact" || u.Memory(100, 100, nil) < 6*100*100*4 {
			t.Errorf("%s: scale %d, class %s, memory %d", name, u.Scale(), u.Class(), u.Memory(100, 100, nil))
		}
		for _, opaque := range []bool{true, false} {
			last := 0
			o := &gomflux.UpscaleOptions{Progress: func(p gomflux.Progress) {
				if p.Phase != gomflux.PhaseUpscale || p.Step < last {
					t.Errorf("progress %+v after %d", p, last)
				}
				last = p.Step
			}}
			got, err := u.Upscale(t.Context(), gradient(9, 7, opaque), o)
			if err != nil {
				t.Fatal(err)
			}
			if size := got.Bounds().Size(); size != image.Pt(9*n.Scale(), 7*n.Scale()) || last != 1000 {
				t.Errorf("%s: size %v, progress ends at %d", name, size, last)
			}
			if _, ok := got.(*image.RGBA); ok != opaque {
				t.Errorf("%s, opaque %v: found %T", name, opaque, got)
			}
			left, right := got.At(0, 3), got.At(got.Bounds().Dx()-1, 3)
			_, _, _, a := left.RGBA()
			_, _, _, b := right.RGBA()
			if !opaque && a >= b {
				t.Errorf("%s: alpha %d at the left, %d at the right", name, a, b)
			}
		}
		if got, err := u.Upscale(t.Context(), gradient(1, 1, true), nil); err != nil || got.Bounds().Dx() != n.Scale() {
			t.Errorf("%s: one pixel: %v", name, err)
		}
		// in float16 nearly the same
		half := openUpscaler(t, writeNetwork(t, n, nil), &gomflux.OpenOptions{Dtype: gomflux.Float16})
		a, _ := u.Upscale(t.Context(), gradient(9, 7, true), nil)
		b, err := half.Upscale(t.Context(), gradient(9, 7, true), nil)
		if err != nil {
			t.Fatal(err)
		}
		if most := largestDifference(a.(*image.RGBA).Pix, b.(*image.RGBA).Pix); most > 1 {
			t.Errorf("%s: float16 is off by %d", name, most)
		}
	}
}

// TestUpscaleParts enlarges an image that is so wide that its rows are computed in parts, and one with the first of its
// columns, which is not.
func TestUpscaleParts(t *testing.T) {
	config := upscaler.CompactConfig{NumInCh: 3, NumOutCh: 3, NumFeat: 1, NumConv: 18, Upscale: 8}
	n := upscaler.NewCompact(config)
	u := openUpscaler(t, writeNetwork(t, n, nil), nil)
	const w, h, columns = 7800, 9, 50
	for _, opaque := range []bool{true, false} {
		wide, parts := gradient(w, h, opaque), 0
		o := &gomflux.UpscaleOptions{Progress: func(gomflux.Progress) { parts++ }}
		all, err := u.Upscale(t.Context(), wide, o)
		if err != nil {
			t.Fatal(err)
		}
		if parts < 3 {
			t.Errorf("%d parts, expected several", parts)
		}
		first := wide.SubImage(image.Rect(0, 0, columns, h))
		want, err := u.Upscale(t.Context(), first, nil)
		if err != nil {
			t.Fatal(err)
		}
		if most := largestDifference(pixelsOf(all, columns-n.Radius()), pixelsOf(want, columns-n.Radius())); most > 1 {
			t.Errorf("opaque %v: off by %d", opaque, most)
		}
	}
}

// pixelsOf returns the pixels of 8 times as many of an image's first columns.
func pixelsOf(img image.Image, columns int) (pix []uint8) {
	switch img := img.(type) {
	case *image.NRGBA:
		for y := range img.Rect.Dy() {
			pix = append(pix, img.Pix[y*img.Stride:][:4*8*columns]...)
		}
	case *image.RGBA:
		return pixelsOf((*image.NRGBA)(img), columns)
	}
	return pix
}

// BenchmarkUpscale enlarges an image to 4096x4096 by a network that computes as little as possible.
func BenchmarkUpscale(b *testing.B) {
	n := upscaler.NewCompact(upscaler.CompactConfig{NumInCh: 3, NumOutCh: 3, NumFeat: 1, Upscale: 4})
	u := openUpscaler(b, writeNetwork(b, n, nil), nil)
	img := gradient(1024, 1024, true)
	for b.Loop() {
		if _, err := u.Upscale(b.Context(), img, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func largestDifference(a, b []uint8) (most int) {
	for i := range a {
		d := int(a[i]) - int(b[i])
		most = max(most, d, -d)
	}
	return most
}

// TestUpscaleSize checks the sizes that images become, and those that are refused.
func TestUpscaleSize(t *testing.T) {
	u := openUpscaler(t, writeNetwork(t, compact(3, 4), nil), nil)
	lanczos := openUpscaler(t, gomflux.Lanczos, nil)
	for _, c := range []struct {
		u    *gomflux.Upscaler
		o    gomflux.UpscaleOptions
		w, h int
		want string
	}{
		{u, gomflux.UpscaleOptions{}, 36, 28, ""},
		{u, gomflux.UpscaleOptions{Scale: 2}, 18, 14, ""},
		{u, gomflux.UpscaleOptions{Height: 20}, 26, 20, ""},
		{u, gomflux.UpscaleOptions{Width: 30, Height: 9}, 30, 9, ""},
		{lanczos, gomflux.UpscaleOptions{}, 18, 14, ""},
		{lanczos, gomflux.UpscaleOptions{Scale: 3}, 27, 21, ""},
		{u, gomflux.UpscaleOptions{Scale: 8}, 0, 0, "scale 8: must be from 1 to 4, that of the network"},
		{u, gomflux.UpscaleOptions{Scale: 0.5}, 0, 0, "scale 0.5: must be from 1 to 4"},
		{u, gomflux.UpscaleOptions{Scale: 2, Width: 9}, 0, 0, "a scale and a size exclude each other"},
		{u, gomflux.UpscaleOptions{Width: -1}, 0, 0, "must be positive"},
		{u, gomflux.UpscaleOptions{Height: 29}, 0, 0, "size 37x29: must be from 9x7, that of the image, to 36x28, 4 times that"},
		{u, gomflux.UpscaleOptions{Height: 6}, 0, 0, "size 8x6: must be from 9x7"},
	} {
		got, err := c.u.Upscale(t.Context(), gradient(9, 7, true), &c.o)
		if c.want != "" {
			if !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: error %v, expected %s", c.o, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if size := got.Bounds().Size(); size != image.Pt(c.w, c.h) {
			t.Errorf("%+v: %v, expected %dx%d", c.o, size, c.w, c.h)
		}
	}
	if _, _, err := u.Size(6000, 5000, nil); err == nil ||
		err.Error() != "size 24000x20000: 480 million pixels, expected at most 100 (a scale of 1.82)" {
		t.Errorf("error %v", err)
	}
	_, err := u.Upscale(t.Context(), image.NewUniform(color.White), nil)
	if err == nil || strings.Contains(err.Error(), "\n") || !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("an image without end: error %v", err)
	}
}

// TestUpscaleNotFinite checks that NaN in a file is an error that names the tensor, and that what overflows in float16
// is computed in float32.
func TestUpscaleNotFinite(t *testing.T) {
	file := writeNetwork(t, compact(3, 2), func(name string, values []float32) {
		if name == "body.2.bias" {
			values[3] = float32(math.NaN())
		}
	})
	_, err := openUpscaler(t, file, nil).Upscale(t.Context(), gradient(4, 4, true), nil)
	bad, ok := errors.AsType[*gomflux.NotFiniteError](err)
	if !ok || !bad.Damaged() || bad.Weights[0].Name != "body.2.bias" {
		t.Errorf("error %v", err)
	}
	large := writeNetwork(t, compact(3, 2), func(name string, values []float32) {
		for i := range values {
			switch name {
			case "body.0.bias":
				values[i] = 3e5
			case "body.2.weight", "body.2.bias":
				values[i] *= 1e-6
			}
		}
	})
	got, err := openUpscaler(t, large, &gomflux.OpenOptions{Dtype: gomflux.Float16}).Upscale(t.Context(), gradient(4, 4, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := openUpscaler(t, large, nil).Upscale(t.Context(), gradient(4, 4, true), nil)
	if err != nil || largestDifference(got.(*image.RGBA).Pix, want.(*image.RGBA).Pix) > 1 {
		t.Errorf("beyond the range of float16: another image (%v)", err)
	}
}

// TestUpscalerNames checks the errors about names.
func TestUpscalerNames(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	pickle := filepath.Join(t.TempDir(), "x.pth")
	if err := os.WriteFile(pickle, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		gomflux.DefaultUpscaler: "(to get it: gomflux pull realesrgan-x4plus; 66 MB)",
		"nothing.safetensors":   "no upscaler nothing.safetensors: expected a safetensors file",
		pickle:                  "a pickle file, which can run arbitrary code",
		"models/testdata/zimage-ordinary/model/vae/diffusion_pytorch_model.safetensors": "expected a network that enlarges images, " +
			"found only vae",
		"models/testdata/zimage-ordinary/model": "model: expected a network that enlarges images in a single safetensors file",
	} {
		if _, err := gomflux.OpenUpscaler(t.Context(), name, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, expected %s", name, err, want)
		}
	}
}

// TestRefine checks that one tile is plain image-to-image, and that several have the size of the image and the seeds
// after the first.
func TestRefine(t *testing.T) {
	m, err := gomflux.Open(t.Context(), "shapes", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	seed := uint64(5)
	o := gomflux.Options{Prompt: "a red circle", Seed: &seed, Steps: 4}
	whole := gradient(64, 64, true)
	plain := o
	plain.Image, plain.ImageStrength, plain.Width, plain.Height = whole, 0.5, 64, 64
	want, err := m.Generate(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Refine(t.Context(), whole, o, gomflux.RefineOptions{Strength: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Same(t, "one tile", got.Image.Pix, want.Image.Pix)

	large, steps := gradient(90, 70, true), 0
	o.Progress = func(p gomflux.Progress) {
		if p.Phase == gomflux.PhaseStep {
			if p.Step < steps || p.Steps != 8 {
				t.Errorf("progress %+v after %d steps", p, steps)
			}
			steps = p.Step
		}
	}
	tiled, err := m.Refine(t.Context(), large, o, gomflux.RefineOptions{Strength: 0.5, Tile: 64, Overlap: 8})
	if err != nil {
		t.Fatal(err)
	}
	if tiled.Image.Rect != image.Rect(0, 0, 90, 70) || tiled.Settings.Width != 90 || tiled.Settings.Seed != 5 ||
		tiled.StepsRun != 8 || steps != 8 {
		t.Errorf("image %v, settings %+v, %d steps", tiled.Image.Rect, tiled.Settings, tiled.StepsRun)
	}
	// a corner belongs to the first tile alone
	first := plain
	first.Image, first.Width, first.Height = large.SubImage(image.Rect(0, 0, 64, 64)), 64, 64
	alone, err := m.Generate(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := tiled.Image.RGBAAt(3, 2), alone.Image.RGBAAt(3, 2); a != b {
		t.Errorf("a pixel of the first tile is %v, expected %v", a, b)
	}
	for _, r := range []gomflux.RefineOptions{{Strength: 1}, {Strength: -1}, {Tile: 64, Overlap: 60}, {Tile: 1}} {
		if _, err := m.Refine(t.Context(), whole, o, r); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("%+v: error %v", r, err)
		}
	}
}

// TestRefineFamilies checks for small models of every family that one tile is plain image-to-image, or refused by models that
// do not start from an image. CI runs the first two.
func TestRefineFamilies(t *testing.T) {
	refused := []string{"flux1-kontext", "flux1-fill", "qwen-edit-plus", "qwen-layered"}
	list := modeltest.Networks()
	if os.Getenv("GOMFLUX_MATRIX") != "all" {
		list = list[:2]
	}
	for _, small := range list {
		t.Run(small.Name, func(t *testing.T) {
			m, err := gomflux.Open(t.Context(), modeltest.Folder(t, small.Name), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			seed, side := uint64(7), 4*m.Multiple()
			o := gomflux.Options{Prompt: "a cat", Seed: &seed, Steps: 3}
			plain := o
			plain.Image, plain.ImageStrength, plain.Width, plain.Height = gradient(side, side, true), 0.5, side, side
			want, err := m.Generate(t.Context(), plain)
			got, refining := m.Refine(t.Context(), plain.Image, o, gomflux.RefineOptions{Strength: 0.5, Tile: side})
			if slices.Contains(refused, small.Name) {
				if !errors.Is(err, gomflux.ErrRequest) || !errors.Is(refining, gomflux.ErrRequest) {
					t.Errorf("image-to-image: %v; refining: %v", err, refining)
				}
				return
			}
			if err = cmp.Or(err, refining); err != nil {
				t.Fatal(err)
			}
			mlxtest.Same(t, "one tile", got.Image.Pix, want.Image.Pix)
			tiled, err := m.Refine(t.Context(), gradient(side+3, side, true), o, gomflux.RefineOptions{Strength: 0.5, Tile: side})
			if err != nil {
				t.Fatal(err)
			}
			if tiled.StepsRun != 2*got.StepsRun || tiled.Image.Rect.Dx() != side+3 {
				t.Errorf("two tiles: %v, %d steps, expected %d", tiled.Image.Rect, tiled.StepsRun, 2*got.StepsRun)
			}
		})
	}
}
