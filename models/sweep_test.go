package models

import (
	"bytes"
	"errors"
	"image"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
)

// TestReplacedValues replaces every tapped value of a run of each family by noise, and checks that
// the image changes or that the value is refused.
func TestReplacedValues(t *testing.T) {
	for _, m := range randtest.Some(3, modeltest.Networks()) {
		t.Run(m.Name, func(t *testing.T) { sweep(t, m.Name, "", false) })
	}
	for _, test := range []struct{ folder, scheduler string }{
		{"zimage-small", "heun"}, {"zimage-small", "linear"}, {"flux1-schnell-ordinary", "heun"}, {"qwen-edit-plus", "linear"},
	} {
		t.Run(test.folder+" "+test.scheduler, func(t *testing.T) { sweep(t, test.folder, test.scheduler, false) })
	}
	for _, folder := range []string{"flux1-dev-small", "flux2-klein-kv", "qwen-edit"} {
		t.Run(folder+" inpaint", func(t *testing.T) { sweep(t, folder, "", true) })
	}
}

func sweep(t *testing.T, folder, scheduler string, inpaints bool) {
	var p *Pipeline
	mlxtest.Do(t, func() {
		var err error
		if p, err = Load(os.DirFS("testdata/"+folder+"/model"), LoadOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	defer p.Close()
	r := Request{Prompt: "a red hat", NegativePrompt: "blurry", Height: 32, Width: 48, Steps: 3, MaxSequenceLength: 24,
		Seed: 1, Scheduler: scheduler}
	if m := p.Multiple(); r.Width%m != 0 {
		r.Width += m - r.Width%m
	}
	if guided, err := p.family.Guidance(family.Guidance{Scale: 3}); guided && err == nil {
		r.Guidance = 3
	}
	if _, ok := p.family.(family.Editor); inpaints {
		img := coloured(80, 100)
		r.Inpaint, r.ImageStrength = leftHalf(t, img), 0.4
	} else if ok && p.checkReferences([]image.Image{coloured(80, 100)}, 0) == nil {
		r.References = []image.Image{coloured(80, 100)}
	} else {
		r.Image, r.ImageStrength = coloured(48, 32), 0.4
		r.Inpaint = p.LeastInpaint(r.Image)
	}
	var names []string
	run := func(name string) (picture []uint8, err error) {
		r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
			if len(tap.Inputs) > 0 || tap.Point != (hooks.Point{}) {
				return nil, nil // a module's
			}
			full := tap.FullName()
			if name == "" {
				names = append(names, full)
			} else if full == name {
				return noiseLike(tap.Output), nil
			}
			return nil, nil
		}
		err = mlx.Do(t.Context(), func() error {
			result, err := p.Generate(r)
			if err == nil {
				picture = result.Image.Pix
			}
			return err
		})
		return picture, err
	}
	want, err := run("")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) < 10 {
		t.Fatalf("values %q", names)
	}
	for _, name := range names {
		got, err := run(name)
		if err != nil {
			t.Logf("%s is refused: %v", name, err)
			continue
		}
		if bytes.Equal(got, want) {
			t.Errorf("noise in the place of %s changes nothing", name)
		}
	}
}

// leftHalf returns an image whose left half is to be inpainted.
func leftHalf(t *testing.T, img *image.RGBA) *inpaint.Input {
	t.Helper()
	mask := image.NewGray(img.Rect)
	for i := range mask.Pix {
		if i%mask.Stride < mask.Stride/2 {
			mask.Pix[i] = 255
		}
	}
	in, err := inpaint.New(img, mask, inpaint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// noiseLike returns noise in an array's shape and dtype. Integers are permuted and changed within
// their range.
func noiseLike(x *mlx.Array) *mlx.Array {
	r := rand.New(rand.NewPCG(1, 2))
	if x.Dtype().IsFloat() {
		values := make([]float32, x.Size())
		for i := range values {
			values[i] = float32(r.NormFloat64())
		}
		return mlx.FromFloat32(values, x.Shape()...).AsType(x.Dtype())
	}
	values := x.AsType(mlx.Float32).Floats()
	slices.Reverse(values)
	top := slices.Max(values)
	for i := range values {
		if r.IntN(2) == 0 && values[i] > 1 {
			values[i] = float32(int(values[i]*7+3) % (int(top) + 1))
		}
	}
	return mlx.FromFloat32(values, x.Shape()...).AsType(x.Dtype())
}

// coloured returns an image of many colours.
func coloured(w, h int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = uint8(i * 37 % 251)
		if i%4 == 3 {
			img.Pix[i] = 255
		}
	}
	return img
}

// TestOverriddenSchedule overrides sigmas and timesteps.
func TestOverriddenSchedule(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{Prompt: "a red hat", Height: 32, Width: 32, Steps: 3, MaxSequenceLength: 24, Seed: 1}
		want, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		for name, values := range map[string][]float32{"sigmas": {1, 0.9, 0.2, 0}, "timesteps": {1000, 100, 50}} {
			r.Overrides = hostValues{name: func() *mlx.Array { return mlx.FromFloat32(values) }}
			got, err := p.Generate(r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if bytes.Equal(got.Image.Pix, want.Image.Pix) {
				t.Errorf("other %s change nothing", name)
			}
			for what, wrong := range map[string][]float32{"too few": values[1:], "rising": {0, 0.5, 1, 2}} {
				if name == "timesteps" && what == "rising" {
					continue
				}
				r.Overrides = hostValues{name: func() *mlx.Array { return mlx.FromFloat32(wrong) }}
				if _, err := p.Generate(r); !isRequest(err) {
					t.Errorf("%s %s: error %v", what, name, err)
				}
			}
		}
	})
}

// TestPackedOverrides overrides latents in the shape of the argument of diffusers' pipelines.
func TestPackedOverrides(t *testing.T) {
	for _, m := range modeltest.Networks() {
		folder := m.Name
		mlxtest.Do(t, func() {
			p, err := Load(os.DirFS("testdata/"+folder+"/model"), LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			packer, ok := p.family.(family.NoisePacker)
			if !ok {
				return
			}
			r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 2, MaxSequenceLength: 24}
			if multiple := p.Multiple(); r.Width%multiple != 0 {
				r.Width = 2 * multiple
			}
			r.Inpaint = p.LeastInpaint(coloured(r.Width, r.Height))
			for range m.References {
				r.References = append(r.References, coloured(80, 64))
			}
			h, w := p.latentSize(r.Height, r.Width)
			if m.Layers > 0 {
				h *= m.Layers + 1
			}
			tokens := func() *mlx.Array { return mlx.Normal(mlx.Key(3), mlx.Float32, packer.PackedShape(h, w)...) }
			var pictures [2][]uint8
			for i, noise := range []func() *mlx.Array{tokens, func() *mlx.Array { return packer.Unpack(tokens(), h, w).ExpandDims(0) }} {
				r.Overrides = hostValues{"latents.init": noise}
				made, err := p.Generate(r)
				if err != nil {
					t.Fatalf("%s: %v", folder, err)
				}
				pictures[i] = made.Image.Pix
			}
			if !bytes.Equal(pictures[0], pictures[1]) {
				t.Errorf("%s: another picture of packed noise", folder)
			}
			r.Overrides = hostValues{"latents.init": func() *mlx.Array { return tokens().Slice(1, 0, 1) }}
			if _, err := p.Generate(r); !isRequest(err) {
				t.Errorf("%s: too few tokens: error %v", folder, err)
			}
		})
	}
}

func isRequest(err error) bool { return err != nil && errors.Is(err, errs.ErrRequest) }
