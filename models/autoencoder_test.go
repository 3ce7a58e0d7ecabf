package models

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/errs"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
)

const ordinary = "testdata/zimage-ordinary/model"

// TestRoundtrip encodes an image and decodes its latents, and compares both with diffusers'
// AutoencoderKL.
func TestRoundtrip(t *testing.T) {
	from, err := picture.ReadFile("testdata/zimage-ordinary/encode/picture.png")
	if err != nil {
		t.Fatal(err)
	}
	// the same image in a larger one
	b := from.Image.Bounds()
	larger := image.NewNRGBA(image.Rect(-3, -5, b.Dx()+7, b.Dy()+2))
	for y := range b.Dy() {
		for x := range b.Dx() {
			larger.Set(x+1, y+2, from.Image.At(b.Min.X+x, b.Min.Y+y))
		}
	}
	loadable := larger.SubImage(image.Rect(1, 2, 1+b.Dx(), 2+b.Dy()))

	mlxtest.Do(t, func() {
		encodedReference := goldenTensors(t, "testdata/zimage-ordinary/encode/tensors.safetensors", "vae.encode.out")
		ref := goldenTensors(t, "testdata/zimage-ordinary/roundtrip/tensors.safetensors", "vae.decoder", "image")
		a := loadAutoencoder(t, ordinary)
		within := func(what string, got, want []float32) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("%s: %d values, expected %d", what, len(got), len(want))
			}
			worst, largest := 0.0, 0.0
			for i, w := range want {
				worst, largest = max(worst, math.Abs(float64(got[i])-float64(w))), max(largest, math.Abs(float64(w)))
			}
			t.Logf("%s: off by %.1e of %.3g", what, worst, largest)
			if !(worst <= 2e-5*largest) {
				t.Errorf("%s: off by %.1e of %.3g", what, worst, largest)
			}
		}

		l, err := a.Encode(from.Image)
		if err != nil {
			t.Fatal(err)
		}
		mean := encodedReference["vae.encode.out"]
		if !slices.Equal(l.Shape, mean.Shape()[1:]) {
			t.Fatalf("latents of shape %v, expected %v", l.Shape, mean.Shape()[1:])
		}
		within("Encode", l.Data, a.vae.Scale(mean).Floats())
		again, err := a.Encode(loadable)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.Data, l.Data) {
			t.Error("a part of a larger picture has other latents")
		}

		var decoded []float32
		a.points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "vae.decode.out" {
				decoded = tap.Output.Floats()
			}
			return nil, nil
		}
		img, err := a.decodeWith(a.vae.Unscale, mlx.FromFloat32(l.Data, l.Shape...))
		if err != nil {
			t.Fatal(err)
		}
		within("decoded", decoded, ref["vae.decoder"].Floats())
		want := ref["image"]
		if img.Rect != image.Rect(0, 0, want.Dim(1), want.Dim(0)) {
			t.Fatalf("a picture of %v, expected shape %v", img.Rect, want.Shape())
		}
		off := 0
		for i, w := range want.Uint8s() {
			switch got := img.Pix[i/3*4+i%3]; {
			case got > w+1 && w < 255 || got < w-1 && w > 0:
				t.Fatalf("value %d of the picture is %d, expected %d", i, got, w)
			case got != w:
				off++
			}
		}
		t.Logf("%d of %d values of the picture differ by 1", off, want.Size())
		if off*1000 > want.Size() {
			t.Errorf("%d of %d values of the picture differ by 1", off, want.Size())
		}

		// a hook is that of a run, which these are no part of
		a.points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			t.Errorf("a hook got %s", tap.Name)
			return nil, nil
		}
		same, err := a.Decode(l, false)
		if err != nil {
			t.Fatal(err)
		}
		if !sameImage(same.Pix, img.Pix) {
			t.Error("Decode gives another picture")
		}
		if _, err := a.Encode(from.Image); err != nil {
			t.Error(err)
		}
		if _, err := a.Projection(); err != nil {
			t.Error(err)
		}
		if a.points.Func == nil {
			t.Error("the run has lost its hook")
		}
	})
}

// goldenTensors reads tensors of a dump. (Package parity has a reader, but imports this package.)
func goldenTensors(t *testing.T, file string, names ...string) map[string]*mlx.Array {
	t.Helper()
	tensors, err := mlx.LoadSafetensors(file, names)
	if err != nil {
		t.Fatal(err)
	}
	return tensors
}

// loadAutoencoder loads an autoencoder in float32.
func loadAutoencoder(t *testing.T, folder string) *Autoencoder {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	a, err := LoadAutoencoder(fsys, LoadOptions{Dtype: new(mlx.Float32)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAutoencoderOverflow checks that values beyond the range of float16 are computed again in
// float32, and that they are an error for a hook, which sees a run once.
func TestAutoencoderOverflow(t *testing.T) {
	from, err := picture.ReadFile("testdata/zimage-ordinary/encode/picture.png")
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		a := loadAutoencoder(t, ordinary)
		for _, p := range nn.Parameters(a.component.Model) {
			if strings.Contains(p.Name, "conv_in.weight") {
				p.Array = p.AsType(mlx.Float32).Times(1e6)
			}
		}
		run := func(dtype mlx.Dtype) (Latents, *image.RGBA, error) {
			a.dtype = dtype
			l, err := a.Encode(from.Image)
			if err != nil {
				return l, nil, err
			}
			img, err := a.Decode(l, false)
			if a.dtype != dtype {
				t.Errorf("computes in %v then, expected %v", a.dtype, dtype)
			}
			return l, img, err
		}
		l, img, err := run(mlx.Float32)
		if err != nil {
			t.Fatal(err)
		}
		again, same, err := run(mlx.Float16)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.Data, l.Data) || !slices.Equal(same.Pix, img.Pix) {
			t.Error("found others than in float32")
		}

		overflowed := errors.AsType[*NotFiniteError]
		calls := 0
		a.points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "vae.decode.out" {
				calls++
			}
			return nil, nil
		}
		_, err = a.decodeWith(a.vae.Unscale, mlx.FromFloat32(l.Data, l.Shape...))
		if _, ok := overflowed(err); !ok || calls != 1 {
			t.Errorf("with a hook: %v after %d calls", err, calls)
		}
		a.points.Func = nil
		for _, p := range nn.Parameters(a.component.Model) {
			p.Array = p.Times(math.NaN())
		}
		if _, err = a.Decode(l, false); err == nil {
			t.Error("decoded NaN")
		} else if _, ok := overflowed(err); !ok {
			t.Error(err)
		}
	})
}

func TestLoadAutoencoderErrors(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(ordinary, "vae/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := os.ReadFile(filepath.Join(ordinary, "vae/diffusion_pytorch_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(config), "AutoencoderKL", "AutoencoderKLWan", 1)
	const file, factors = "vae/diffusion_pytorch_model.safetensors", "vae/latent_rgb_factors.json"
	whole := map[string]string{"vae/config.json": string(config), file: string(tensors)}
	tests := map[string]struct {
		files map[string]string // over those of a whole one
		err   []string          // none: it can be loaded
		of    error
	}{
		"whole": {},
		"class": {files: map[string]string{"vae/config.json": other}, err: []string{"vae/config.json",
			`class "AutoencoderKLWan"`, "expected one of AutoencoderKL"}, of: errs.ErrUnsupported},
		"no config":  {files: map[string]string{"vae/config.json": ""}, err: []string{"vae/config.json"}, of: os.ErrNotExist},
		"nothing":    {files: map[string]string{"vae/config.json": "", file: ""}, err: []string{"vae/config.json"}, of: os.ErrNotExist},
		"no weights": {files: map[string]string{file: ""}, err: []string{"vae"}},
		"its own": {files: map[string]string{"vae/config.json": "", file: "", "config.json": string(config),
			"diffusion_pytorch_model.safetensors": string(tensors)}},
		"a text's": {files: map[string]string{"vae/config.json": "", file: "",
			"config.json": `{"_class_name": "Qwen3Model"}`}, err: []string{"config.json", `"Qwen3Model"`}, of: errs.ErrUnsupported},
		"factors": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],[4,5,6],[7,8,9],[1,0,0]]}`}},
		"damaged": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],`}, err: []string{factors, "line 1"}},
		"text": {files: map[string]string{factors: `{"latent_rgb_factors": [["a",2,3],[4,5,6],[7,8,9],[1,0,0]]}`},
			err: []string{factors, "latent_rgb_factors", "found string"}},
		"too few": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3]]}`},
			err: []string{factors, "1 latent_rgb_factors", "expected 4, the number of the VAE's latent channels"}},
		"none": {files: map[string]string{factors: `{}`}, err: []string{factors, "0 latent_rgb_factors"}},
		"narrow": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],[4,5],[7,8,9],[1,0,0]]}`},
			err: []string{factors, "channel 1: 2 numbers, expected 3"}},
		"wide": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],[4,5,6],[7,8,9,10],[1,0,0]]}`},
			err: []string{factors, "channel 2: 4 numbers, expected 3"}},
		"short bias": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],[4,5,6],[7,8,9],[1,0,0]],
			"latent_rgb_factors_bias": [1]}`}, err: []string{factors, "latent_rgb_factors_bias: 1 numbers"}},
		"with a bias": {files: map[string]string{factors: `{"latent_rgb_factors": [[1,2,3],[4,5,6],[7,8,9],[1,0,0]],
			"latent_rgb_factors_bias": [0.5,0,-1]}`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, files := range []map[string]string{whole, test.files} {
				for name, text := range files {
					path := filepath.Join(dir, name)
					if text == "" {
						if err := os.Remove(path); err != nil {
							t.Fatal(err)
						}
						os.Remove(filepath.Dir(path)) // if nothing else is there
						continue
					}
					if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
						t.Fatal(err)
					}
				}
			}
			fsys, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			mlxtest.Do(t, func() {
				a, err := LoadAutoencoder(fsys, LoadOptions{})
				if test.err == nil {
					if err != nil {
						t.Fatal(err)
					}
					if a.ScaleFactor() != 4 {
						t.Errorf("scale factor %d", a.ScaleFactor())
					}
					if p := a.projection; (p != nil) != (test.files[factors] != "") || p != nil && p.Factors[1] != [3]float64{4, 5, 6} {
						t.Errorf("projection %v", p)
					}
					if name == "with a bias" && a.projection.Bias != [3]float64{0.5, 0, -1} {
						t.Errorf("bias %v", a.projection.Bias)
					}
					return
				}
				if err == nil {
					t.Fatal("it was loaded")
				}
				mlxtest.Contains(t, err.Error(), append(test.err, dir)...)
				if test.of != nil && !errors.Is(err, test.of) {
					t.Errorf("error %v, expected %v", err, test.of)
				}
			})
		})
	}
}

// TestFitProjection fits a known projection, from subimages and from images with transparency,
// which is blended with white.
func TestFitProjection(t *testing.T) {
	mlxtest.Do(t, func() {
		a := loadAutoencoder(t, ordinary)
		chart := colourChart(32 * a.ScaleFactor())
		want, err := a.FitProjection(chart)
		if err != nil {
			t.Fatal(err)
		}
		same := func(what string, got *Projection) {
			t.Helper()
			for i, f := range append(slices.Clone(want.Factors), want.Bias) {
				g := append(slices.Clone(got.Factors), got.Bias)[i]
				for k := range f {
					if math.Abs(f[k]-g[k]) > 1e-9 {
						t.Fatalf("%s: row %d is %v, expected %v", what, i, g, f)
					}
				}
			}
		}

		b := chart.Rect
		larger := image.NewRGBA(image.Rect(0, 0, b.Dx()+16, b.Dy()+8))
		for y := range b.Dy() {
			for x := range b.Dx() {
				larger.Set(x+16, y+8, chart.At(x, y))
			}
		}
		got, err := a.FitProjection(larger.SubImage(image.Rect(16, 8, 16+b.Dx(), 8+b.Dy())).(*image.RGBA))
		if err != nil {
			t.Fatal(err)
		}
		same("a part of a picture", got)

		for y := range b.Dy() / 2 {
			for x := range b.Dx() {
				chart.Set(x, y, color.White)
			}
		}
		if want, err = a.FitProjection(chart); err != nil {
			t.Fatal(err)
		}
		for y := range b.Dy() / 2 {
			for x := range b.Dx() {
				chart.Set(x, y, color.Transparent)
			}
		}
		if got, err = a.FitProjection(chart); err != nil {
			t.Fatal(err)
		}
		same("transparent", got)
	})
}

// TestEncodeTranslucent checks that an image that another package has decoded has the same latents
// as when package picture reads it.
func TestEncodeTranslucent(t *testing.T) {
	img := image.NewNRGBA(image.Rect(0, 0, 256, 8))
	for i := range img.Pix {
		img.Pix[i] = uint8(i / 4) // alpha as well
	}
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		t.Fatal(err)
	}
	read, err := picture.Decode(&file)
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		a := loadAutoencoder(t, ordinary)
		want, err := a.Encode(read.Image)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Encode(img)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Data, want.Data) {
			t.Error("other latents")
		}
	})
}

// TestDecodeMemory checks that an image that is too large for the free memory is decoded in less
// memory, in strips, and a small image at once.
func TestDecodeMemory(t *testing.T) {
	mlxtest.Do(t, func() {
		a := loadAutoencoder(t, ordinary)
		whole := func(side int) int64 {
			a.vae.SetBudget(0)
			return a.vae.DecodeMemory(side, side, a.device, a.dtype)
		}
		for side, bounded := range map[int]bool{64: false, 1 << 15: true} {
			if got, want := a.DecodeMemory(side, side), whole(side); got != want && !bounded || got > want*3/4 && bounded {
				t.Errorf("%[1]dx%[1]d: %d bytes, at once it is %d", side, got, want)
			}
		}
	})
}

func TestProjectionPicture(t *testing.T) {
	p := &Projection{Factors: [][3]float64{{1, 0, 0}, {0, -1, 2}}, Bias: [3]float64{0, 1, 0}}
	l := Latents{Shape: []int{2, 1, 3}, Data: []float32{-1, 0, 1, 0, 1, 2}}
	for _, shape := range [][]int{{2, 1, 3}, {1, 2, 1, 3}} {
		l.Shape = shape
		img, err := p.Picture(l)
		if err != nil {
			t.Fatal(err)
		}
		want := []uint8{0, 255, 128, 255, 128, 128, 255, 255, 255, 0, 255, 255} // 127.5 is rounded up, and what is too large is cut
		if img.Rect != image.Rect(0, 0, 3, 1) || !slices.Equal(img.Pix, want) {
			t.Errorf("%v %v, expected %v", img.Rect, img.Pix, want)
		}
	}
	nan := float32(math.NaN())
	img, err := p.Picture(Latents{Shape: []int{2, 1, 2}, Data: []float32{nan, 1, 0, nan}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint8{0, 0, 0, 255, 0, 0, 0, 255}; !slices.Equal(img.Pix, want) {
		t.Errorf("NaN: %v, expected %v", img.Pix, want)
	}
	for _, l := range []Latents{
		{},
		{Shape: []int{2, 3}, Data: make([]float32, 6)},
		{Shape: []int{3, 1, 2}, Data: make([]float32, 6)},
		{Shape: []int{2, 1, 3}, Data: make([]float32, 5)},
		{Shape: []int{2, -1, -3}, Data: make([]float32, 6)},
		{Shape: []int{2, 0, 3}},
		{Shape: []int{2, 1 << 32, 1 << 31}},
	} {
		if _, err := p.Picture(l); !errors.Is(err, errs.ErrRequest) {
			t.Errorf("%v: error %v, expected %v", l.Shape, err, errs.ErrRequest)
		}
	}
}
