package parity

import (
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// inpaintFaults are faults of inpainting. The run of flux1-inpaint has 5 steps and begins with
// step 2, in latents of 4x6; that of flux2-inpaint has a mask with values between 0 and 1.
var inpaintFaults = []fault{
	{name: "inpaint: the mask is inverted", dump: "flux1-inpaint", edit: invertMask, stage: "latents", module: "latents.mask",
		hint: "mask inverted"},
	{name: "inpaint: the mask is one latent off", dump: "flux1-inpaint",
		bug: onto("latents.mask", func(x *mlx.Array) *mlx.Array {
			return mlx.Concat(3, x.Slice(3, 1, 6), x.Slice(3, 5, 6))
		}), stage: "latents", module: "latents.mask", hint: "mask offset"},
	{name: "inpaint: the mask is reduced by the autoencoder's scale, not that of patches", dump: "flux2-inpaint",
		bug: onto("latents.mask", func(x *mlx.Array) *mlx.Array {
			h, w := x.Dim(2), x.Dim(3)
			corner := x.Slice(2, 0, (h+1)/2).Slice(3, 0, (w+1)/2)
			return doubled(doubled(corner, 2), 3).Slice(2, 0, h).Slice(3, 0, w)
		}), stage: "latents", module: "latents.mask", hint: "mask scale"},
	{name: "inpaint: the mask takes the nearest pixel", dump: "flux2-inpaint",
		bug:   onto("latents.mask", func(x *mlx.Array) *mlx.Array { return x.Plus(0.5).AsType(mlx.Int32).AsType(mlx.Float32) }),
		stage: "latents", module: "latents.mask", hint: "mask threshold"},
	{name: "inpaint: latents outside the mask are not replaced", dump: "flux1-inpaint", bug: becomes("latents@2", "latents.stepped@2"),
		stage: "step 2", module: "latents@2", hint: "blend missing"},
	{name: "inpaint: latents inside the mask are replaced", dump: "flux1-inpaint",
		bug: blends("latents@3", func(ref lookup) (in, out *mlx.Array) {
			return noised(ref, 4), ref("latents.stepped@3")
		}), stage: "step 3", module: "latents@3", hint: "blend inverted"},
	{name: "inpaint: the noise outside the mask is that of the start", dump: "flux1-inpaint",
		bug:   blends("latents@3", func(ref lookup) (in, out *mlx.Array) { return ref("latents.stepped@3"), noised(ref, 2) }),
		stage: "step 3", module: "latents@3", hint: "noise of another step"},
	{name: "inpaint: the noise outside the mask is that before the step", dump: "zimage-inpaint",
		bug:   blends("latents@1", func(ref lookup) (in, out *mlx.Array) { return ref("latents.stepped@1"), noised(ref, 1) }),
		stage: "step 1", module: "latents@1", hint: "noise of another step"},
	{name: "inpaint: no noise outside the mask", dump: "qwen-inpaint",
		bug:   blends("latents@1", func(ref lookup) (in, out *mlx.Array) { return ref("latents.stepped@1"), ref("latents.image") }),
		stage: "step 1", module: "latents@1", hint: "noise missing"},
	{name: "inpaint: other noise outside the mask", dump: "flux1-kontext-inpaint",
		bug: blends("latents@2", func(ref lookup) (in, out *mlx.Array) {
			return ref("latents.stepped@2"), noised(func(name string) *mlx.Array {
				if name == "latents.init" {
					return flipped(ref(name), 2)
				}
				return ref(name)
			}, 3)
		}), stage: "step 2", module: "latents@2"},
	{name: "inpaint: noise after the last step", dump: "flux2-inpaint",
		bug:   blends("latents@2", func(ref lookup) (in, out *mlx.Array) { return ref("latents.stepped@2"), noised(ref, 2) }),
		stage: "step 2", module: "latents@2", hint: "noise of another step"},
	{name: "inpaint: the crop is one pixel larger", dump: "flux1-inpaint-crop", edit: settings("mask_crop", 6), stage: "encode",
		module: "image.in"},
	{name: "inpaint: the mask is not cropped", dump: "qwen-inpaint-crop", bug: onto("latents.mask", func(x *mlx.Array) *mlx.Array {
		return mlx.Concat(2, x.Slice(2, 0, 1), x.Slice(2, 0, x.Dim(2)-1)).Mul(x)
	}), stage: "latents", module: "latents.mask"},
	{name: "inpaint: pasted one pixel off", dump: "qwen-edit-inpaint-crop", bug: onto("image.pasted", func(x *mlx.Array) *mlx.Array {
		return mlx.Concat(1, x.Slice(1, 1, x.Dim(1)), x.Slice(1, 0, 1))
	}), stage: "picture", module: "image.pasted"},
	{name: "inpaint: Kontext's reference image before the new one", dump: "flux1-kontext-inpaint",
		bug: keyed("transformer@2", "hidden_states",
			func(x *mlx.Array) *mlx.Array { return swapped(x, 1, x.Dim(1)/2) }), stage: "step 2", module: "transformer@2",
		hint: "parts in another order"},
}

// doubled repeats each index of an axis.
func doubled(x *mlx.Array, axis int) *mlx.Array {
	var parts []*mlx.Array
	for i := range x.Dim(axis) {
		one := x.Slice(axis, i, i+1)
		parts = append(parts, one, one)
	}
	return mlx.Concat(axis, parts...)
}

// noised returns the reference's latents of the image with the noise of a sigma.
func noised(ref lookup, i int) *mlx.Array {
	sigma := float64(ref("sigmas").Floats()[i])
	return ref("latents.image").Times(1 - sigma).Add(ref("latents.init").Times(sigma))
}

// blends makes latents of others inside and outside the mask.
func blends(name string, f func(ref lookup) (inside, outside *mlx.Array)) func(*replay, hooks.Tap) *mlx.Array {
	return makes(name, func(ref lookup) *mlx.Array {
		inside, outside := f(ref)
		mask := ref("latents.mask")
		return mask.Mul(inside).Add(mask.Times(-1).Plus(1).Mul(outside))
	})
}

// invertMask inverts the file of the mask.
func invertMask(t *testing.T, _, run string) {
	t.Helper()
	name := filepath.Join(run, "..", "mask.png")
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	mask := img.(*image.Gray)
	for i, v := range mask.Pix {
		mask.Pix[i] = 255 - v
	}
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := png.Encode(out, mask); err != nil {
		t.Fatal(err)
	}
}
