package catalog_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/vae"
)

// TestFindAutoencoder checks that the layouts of a tiny autoencoder decode to the same image: diffusers'
// folder, its weights alone, and the decoder alone with the names of its makers and of ComfyUI.
func TestFindAutoencoder(t *testing.T) {
	const tested = "../../vae/testdata/"
	for _, model := range []string{"tiny-preview", "tiny-pool"} {
		dir := t.TempDir()
		source := weightsOf(t, tested+model)
		decoder := map[string]*checkpoint.Array{}
		for name, x := range source {
			if strings.HasPrefix(name, "decoder.") {
				decoder[name] = x
			}
		}
		makers := modeltest.Stored(t, component.AutoencoderTiny.Original[0], decoder)
		files := map[string]string{tested + model: "the folder"}
		write := func(what, folder, prefix string, tensors map[string]*checkpoint.Array) {
			name := filepath.Join(dir, folder, "some.safetensors")
			if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
				t.Fatal(err)
			}
			modeltest.Write(t, name, nil, map[string]map[string]*checkpoint.Array{prefix: tensors})
			files[name] = what
		}
		write("the weights", "weights", "", source)
		write("diffusers' decoder", "decoder", "", decoder)
		write("the makers' decoder", "makers", "", makers)
		write("ComfyUI's decoder", "comfy", "taesd_decoder.", makers)
		files[filepath.Join(dir, "weights")] = "a folder with the weights"
		mlxtest.Do(t, func() {
			var want []uint8
			for _, name := range append([]string{tested + model}, slices.Sorted(maps.Keys(files))...) {
				fsys, err := catalog.FindAutoencoder(name)
				if err != nil {
					t.Fatalf("%s: %v", files[name], err)
				}
				a, err := models.LoadAutoencoder(fsys, models.LoadOptions{})
				if err != nil {
					t.Fatalf("%s: %v", files[name], err)
				}
				shape := []int{4, 4, 6}
				if model == "tiny-pool" {
					shape[0] = 12 // patches of 2x2
				}
				img, err := a.Decode(models.Latents{Shape: shape, Data: mlxtest.Randn(3, shape...).Floats()}, false)
				if err != nil {
					t.Fatalf("%s: %v", files[name], err)
				}
				if want == nil {
					want = img.Pix
				}
				mlxtest.Same(t, model+": "+files[name], img.Pix, want)
			}
		})
	}
}

// weightsOf reads the weights in a folder of vae/testdata, without the values of the reference.
func weightsOf(t *testing.T, folder string) map[string]*checkpoint.Array {
	tensors := modeltest.Read(t, folder)
	maps.DeleteFunc(tensors, func(name string, _ *checkpoint.Array) bool { return !strings.Contains(name, "coder.layers.") })
	return tensors
}

// TestFindTiny checks which autoencoders have a published tiny one, and that it is found in the Hugging
// Face cache only.
func TestFindTiny(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	shift := 0.1159
	flux1 := vae.DefaultKLConfig()
	flux1.LatentChannels, flux1.ScalingFactor, flux1.ShiftFactor = 16, 0.3611, &shift
	sd3 := flux1
	sd3.ScalingFactor = 1.5305
	for _, test := range []struct {
		class *component.Class
		model any
		file  string // "" if there is no published one
	}{
		{component.AutoencoderKL, vae.NewKL(flux1), "madebyollin/taef1:diffusion_pytorch_model.safetensors"},
		{component.AutoencoderKL, vae.NewKL(sd3), ""},
		{component.AutoencoderKLFlux2, vae.NewKLFlux2(vae.DefaultKLFlux2Config()), "madebyollin/taef2:taef2.safetensors"},
		{component.AutoencoderKLQwenImage, vae.NewKLQwenImage(vae.DefaultKLQwenImageConfig()), ""},
		{component.AutoencoderKLQwenImage21, vae.NewKLQwenImage21(vae.DefaultKLQwenImage21Config()), ""},
	} {
		c := component.Component{Class: test.class, Model: test.model}
		_, _, err := catalog.FindTiny(c)
		want := "no tiny autoencoder is known for the latents of this model's " + test.class.Name
		if test.file != "" {
			want = "the tiny autoencoder for this model is not on this machine (to get it: gomflux pull " + test.file + ")"
		}
		if !errors.Is(err, errs.ErrNotFound) || err.Error() != want {
			t.Errorf("%s: error %v, expected %s", test.class.Name, err, want)
		}
		if test.file == "" {
			continue
		}
		repo, file, _ := strings.Cut(test.file, ":")
		folder := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
		snapshot := filepath.Join(folder, "snapshots", strings.Repeat("a", 40))
		for _, dir := range []string{snapshot, filepath.Join(folder, "refs")} {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(folder, "refs", "main"), []byte(filepath.Base(snapshot)), 0o666); err != nil {
			t.Fatal(err)
		}
		modeltest.Write(t, filepath.Join(snapshot, file), nil,
			map[string]map[string]*checkpoint.Array{"": weightsOf(t, "../../vae/testdata/tiny-preview")})
		fsys, name, err := catalog.FindTiny(c)
		if err != nil || name != test.file {
			t.Fatalf("%s: found %q, %v", test.class.Name, name, err)
		}
		mlxtest.Do(t, func() {
			if _, err := models.LoadAutoencoder(fsys, models.LoadOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
