package gomflux_test

import (
	"errors"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// seedVR2Files writes the files of a small SeedVR2 as ComfyUI has them, or with a file for the embeddings of that name.
func seedVR2Files(t *testing.T, folder, embeddings string) (transformerFile, vaeFile string) {
	t.Helper()
	c := transformer.DefaultNaDiTConfig()
	c.VidDim, c.TxtInDim, c.Heads, c.HeadDim, c.RopeDim, c.NumLayers, c.MMLayers, c.MLPDim = 32, 24, 2, 16, 16, 2, 1, 256
	v := vae.DefaultSeedVR2Config()
	v.BlockOutChannels, v.LayersPerBlock = []int{32, 32, 32, 32}, 1
	var text []*checkpoint.Array
	mlxtest.Do(t, func() {
		a, err := checkpoint.FromFloat32(embeddings, []int{5, 24}, foreigntest.Signed(1, 5, 24).Floats())
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, a)
	})
	frequencies, err := checkpoint.FromFloat32("blocks.0.attn.rope.rope.freqs", []int{2}, []float32{1, 0})
	if err != nil {
		t.Fatal(err)
	}
	transformerFile = filepath.Join(folder, "diffusion_models", "seedvr2_tiny_fp16.safetensors")
	vaeFile = filepath.Join(folder, "vae", "seedvr2_ema_vae_fp16.safetensors")
	extra := []*checkpoint.Array{frequencies}
	if embeddings == "positive_conditioning" {
		extra = append(extra, text...)
	} else {
		writeTensors(t, filepath.Join(folder, "diffusion_models", "pos_emb.safetensors"), text)
	}
	writeModel(t, transformerFile, transformer.NewNaDiT(c), extra)
	writeModel(t, vaeFile, vae.NewSeedVR2(v), nil)
	return transformerFile, vaeFile
}

// writeModel writes a model with the weights of foreigntest.
func writeModel(t *testing.T, file string, model any, list []*checkpoint.Array) {
	t.Helper()
	mlxtest.Do(t, func() {
		for i, p := range nn.Parameters(model) {
			factor, one := 0.1, 0.0
			if len(p.Stored()) == 1 && strings.Contains(p.Name, "norm") && strings.HasSuffix(p.Name, "weight") {
				one = 1
			}
			values := foreigntest.Signed(i, p.Stored()...).Times(factor).Plus(one).Floats()
			a, err := checkpoint.FromFloat32(p.Name, p.Stored(), values)
			if err == nil {
				a, err = a.Cast(checkpoint.F16)
			}
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, a)
		}
	})
	writeTensors(t, file, list)
}

func writeTensors(t *testing.T, file string, list []*checkpoint.Array) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
}

// TestSeedVR2 checks that SeedVR2's files are found in ComfyUI's folders and in one, and that it works at the size that is asked
// for.
func TestSeedVR2(t *testing.T) {
	folder := t.TempDir()
	whole, _ := seedVR2Files(t, folder, "positive_conditioning")
	opaque, cpu := gradient(37, 22, true), &gomflux.OpenOptions{Device: gomflux.CPU}
	upscale := func(u *gomflux.Upscaler, img image.Image, o *gomflux.UpscaleOptions) image.Image {
		t.Helper()
		out, err := u.Upscale(t.Context(), img, o)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	u := openUpscaler(t, whole, cpu)
	if u.Class() != "NaDiT" || u.Scale() != 8 || u.Memory(37, 22, nil) < 4*37*22*4 {
		t.Errorf("%s, scale %d, %d bytes", u.Class(), u.Scale(), u.Memory(37, 22, nil))
	}
	done := 0
	first := upscale(u, opaque, &gomflux.UpscaleOptions{Progress: func(p gomflux.Progress) {
		if p.Step < done || p.Phase != gomflux.PhaseUpscale {
			t.Errorf("progress %+v after %d", p, done)
		}
		done = p.Step
	}}).(*image.RGBA)
	if first.Rect.Size() != image.Pt(74, 44) || done != 1000 || !first.Opaque() {
		t.Errorf("size %v, progress %d, opaque %v", first.Rect.Size(), done, first.Opaque())
	}
	if other := upscale(u, opaque, &gomflux.UpscaleOptions{Seed: 1}).(*image.RGBA); string(other.Pix) == string(first.Pix) {
		t.Error("the seed has no effect")
	}
	if size := upscale(u, opaque, &gomflux.UpscaleOptions{Width: 50}).Bounds().Size(); size != image.Pt(50, 30) {
		t.Errorf("size %v, expected 50x30", size)
	}
	transparent := upscale(u, gradient(37, 22, false), nil).(*image.NRGBA)
	if a, b := transparent.NRGBAAt(3, 4), transparent.NRGBAAt(70, 4); transparent.Rect != first.Rect || a.A >= b.A {
		t.Errorf("size %v, alpha %d at the left, %d at the right", transparent.Rect, a.A, b.A)
	}
	wavelet := &gomflux.UpscaleOptions{ColorCorrection: "wavelet"} // which keeps small differences small
	exact := upscale(u, opaque, wavelet).(*image.RGBA)
	inHalf := openUpscaler(t, whole, &gomflux.OpenOptions{Device: gomflux.CPU, Dtype: gomflux.Float16})
	half := upscale(inHalf, opaque, wavelet).(*image.RGBA)
	if most := largestDifference(exact.Pix, half.Pix); most > 3 || string(exact.Pix) == string(first.Pix) {
		t.Errorf("float16 is off by %d, or colours are not matched by default", most)
	}
	if _, err := u.Upscale(t.Context(), opaque, &gomflux.UpscaleOptions{ColorCorrection: "hsv"}); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("another color correction: %v", err)
	}

	// the folder, and one with all files and mflux's file of embeddings
	flat := t.TempDir()
	file, autoencoder := seedVR2Files(t, t.TempDir(), "embedding")
	for _, name := range []string{file, autoencoder, filepath.Join(filepath.Dir(file), "pos_emb.safetensors")} {
		if err := os.Rename(name, filepath.Join(flat, filepath.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{folder, flat} {
		if again := upscale(openUpscaler(t, name, cpu), opaque, nil).(*image.RGBA); string(again.Pix) != string(first.Pix) {
			t.Errorf("%s: another image", name)
		}
	}

	// a published model in the Hugging Face cache
	cache, commit := t.TempDir(), strings.Repeat("a", 40)
	t.Setenv("HF_HUB_CACHE", cache)
	repo := filepath.Join(cache, "models--Comfy-Org--SeedVR2")
	for file, from := range map[string]string{
		"diffusion_models/seedvr2_3b_int8_convrot.safetensors": whole,
		"vae/seedvr2_ema_vae_fp16.safetensors":                 filepath.Join(folder, "vae/seedvr2_ema_vae_fp16.safetensors"),
	} {
		at, blob := filepath.Join(repo, "snapshots", commit, file), filepath.Join(repo, "blobs", filepath.Base(file))
		err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o777), os.MkdirAll(filepath.Dir(blob), 0o777),
			os.MkdirAll(filepath.Join(repo, "refs"), 0o777), os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(commit), 0o666))
		if err = errors.Join(err, os.Rename(from, blob), os.Symlink(blob, at)); err != nil {
			t.Fatal(err)
		}
	}
	published := openUpscaler(t, "SeedVR2-3B", cpu)
	if again := upscale(published, opaque, nil).(*image.RGBA); string(again.Pix) != string(first.Pix) || published.Revision() != commit {
		t.Errorf("%s at %q: another image, or revision", published.Name(), published.Revision())
	}

	in := func(name string) string { return filepath.Join(flat, filepath.Base(name)) }
	for _, c := range []struct {
		change func() error
		want   string
	}{
		{func() error { return os.WriteFile(in("seedvr2_b.safetensors"), nil, 0o666) }, "has several transformers of SeedVR2"},
		{func() error {
			return errors.Join(os.Remove(in("seedvr2_b.safetensors")), os.Remove(in("pos_emb.safetensors")))
		},
			"has no tensor positive_conditioning"},
		{func() error { return os.WriteFile(in("pos_emb.pt"), nil, 0o666) }, "is a pickle file"},
		{func() error { return os.Remove(in(autoencoder)) }, "no autoencoder of SeedVR2"},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		_, err := gomflux.OpenUpscaler(t.Context(), flat, cpu)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("found %v, expected an error with %q", err, c.want)
		}
	}
}
