package models

import (
	"fmt"
	"image"
	"io/fs"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/upscaler"
)

// loadSeedVR2 loads the autoencoder and the embeddings of the prompt in a folder of [catalog.FindUpscaler].
func (u *Upscaler) loadSeedVR2(fsys fs.FS, m *upscaler.SeedVR2) error {
	v, c, err := component.DeclareAutoencoder(&u.loader.Folder, component.Autoencoders)
	if err != nil {
		return err
	}
	if want := m.Transformer.Config.VidOutChannels; v.LatentChannels() != want || v.ScaleFactor() != 8 {
		return errs.Requestf("the autoencoder has latents of %d channels and 1/%d of the size, expected %d and 1/8",
			v.LatentChannels(), v.ScaleFactor(), want)
	}
	u.base.setVAE(v, c, u.loader)
	m.VAE, m.Points, u.seedvr2 = v, &u.base.points, m
	if err := u.loader.LoadFiles(c); err != nil {
		return err
	}
	m.Text, err = readPrompt(fsys, m.Transformer.Config.TxtInDim)
	return err
}

// readPrompt reads the embeddings of the prompt, [1, T, width].
func readPrompt(fsys fs.FS, width int) (*mlx.Array, error) {
	ck, err := checkpoint.OpenCheckpoint(fsys, catalog.PromptFolder)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	for _, t := range ck.Tensors {
		if t.Name != component.MFluxEmbeddings && !strings.HasSuffix(t.Name, component.PromptEmbeddings) {
			continue
		}
		if dtype, ok := nn.DtypeOf(t.Dtype); !ok || !dtype.IsFloat() || len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] != width {
			return nil, fmt.Errorf("%w: %s: tensor %s: found %s of shape %v, expected 16 or 32-bit floats of shape [tokens, %d]",
				errs.ErrUnsupported, t.File, t.Name, t.Dtype, t.Shape, width)
		}
		file, err := ck.Files[0].Path()
		if err != nil {
			return nil, err
		}
		arrays, err := mlx.LoadSafetensors(file, []string{t.Name})
		if err != nil {
			return nil, err
		}
		text := arrays[t.Name].ExpandDims(0)
		mlx.Eval(text)
		mlx.Keep(text)
		return text, nil
	}
	return nil, fmt.Errorf("%w: %s: expected a tensor %s or %s", errs.ErrUnsupported, ck.Dir, component.PromptEmbeddings,
		component.MFluxEmbeddings)
}

// Restores reports whether it works at the size of the output, and from noise.
func (u *Upscaler) Restores() bool { return u.seedvr2 != nil }

// restoringMemory estimates the bytes in which an image is restored to a size.
func (u *Upscaler) restoringMemory(height, width int) int64 {
	m := u.seedvr2
	height, width = upTo(height, m.Multiple()), upTo(width, m.Multiple())
	u.base.DecodeMemory(height, width) // sets the budget
	n := m.Memory(height, width, u.base.device, u.base.dtype) + 4*int64(height)*int64(width)
	return n + weightsSize(m.Modules()...)
}

// upTo returns the next multiple of k.
func upTo(n, k int) int { return (n + k - 1) / k * k }

// restore is Upscale for SeedVR2.
func (u *Upscaler) restore(img image.Image, to image.Point, r Restoration, progress func(share float64)) (out *image.NRGBA, err error) {
	var alpha *image.NRGBA
	colours := picture.Opaque(img)
	if t := picture.Transparent(img); t != nil {
		alpha = picture.ResizeTransparent(t, to.X, to.Y)
		colours = (*image.RGBA)(&image.NRGBA{Pix: slices.Clone(t.Pix), Stride: t.Stride, Rect: t.Rect})
		for i := 3; i < len(colours.Pix); i += 4 {
			colours.Pix[i] = 255 // colours are not multiplied by alpha
		}
	}
	levels := pixels.RGB(picture.ResizeBicubic(colours, to.X, to.Y))
	err = u.inDtypes(func(dtype mlx.Dtype) (bool, error) {
		out, err = u.restoreOnce(mlx.FromUint8(levels, to.Y, to.X, 3), r, dtype, progress)
		return out != nil, err
	})
	if err != nil {
		return nil, err
	}
	for i := 3; alpha != nil && i < len(out.Pix); i += 4 {
		out.Pix[i] = alpha.Pix[i]
	}
	return out, nil
}

// restoreOnce returns the image of pixels [H, W, 3], nil if values are not finite.
func (u *Upscaler) restoreOnce(levels *mlx.Array, how Restoration, dtype mlx.Dtype, report func(float64)) (out *image.NRGBA, err error) {
	const encoded, stepped = 0.2, 0.6 // shares of the work, as measured at 1024x1024
	r, points := u.seedvr2, &u.base.points
	free := mlx.FreeMemory(u.base.device)
	mlx.WithScope(func() {
		h, w := levels.Dim(0), levels.Dim(1)
		levels = points.Value("image.in", levels)
		x := levels.AsType(mlx.Float32).Over(255).Times(2).Plus(-1)
		for axis, n := range []int{h, w} { // pixels at the edge repeat
			indices := make([]int32, upTo(n, r.Multiple()))
			for i := range indices {
				indices[i] = int32(min(i, n-1))
			}
			x = x.Take(axis, indices)
		}
		x = x.Transpose(2, 0, 1).ExpandDims(0)
		mlx.Eval(x)
		u.base.setBudget(x.Dim(2), x.Dim(3), free, r.VAE.EncodeMemory)
		latents := r.Latents(x.AsType(dtype))
		mlx.Eval(latents)
		report(encoded)
		noise := points.Value("latents.init", mlx.FromFloat32(scheduler.TorchNoise(how.Seed, latents.Size()), latents.Shape()...))
		points.Step = 0
		blocks := float64(r.Transformer.Config.NumLayers)
		var made *mlx.Array
		made, err = r.Step(latents, noise, func(n int) { report(encoded + (stepped-encoded)*float64(n)/blocks) })
		if err != nil {
			return
		}
		points.Step = -1
		mlx.Eval(made)
		mlx.ClearCache()
		u.base.setBudget(x.Dim(2), x.Dim(3), free, r.VAE.DecodeMemory)
		y := r.Image(made, x, how.Colours)
		if !y.AllFinite() {
			return
		}
		y = y.Slice(2, 0, h).Slice(3, 0, w).Over(2).Plus(0.5).Clip(0, 1).Times(255).Round()
		out = imageOf(points.Value("image", y.Squeeze(0).Transpose(1, 2, 0).AsType(mlx.Uint8)))
		report(1)
	})
	return out, err
}
