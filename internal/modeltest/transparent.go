package modeltest

import (
	"encoding/json"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/vae"
)

// Transparent writes a model with the autoencoder of a small one replaced by a random one for the same
// latents, whose images have an alpha channel, and returns its folder.
func Transparent(t testing.TB, name string) string {
	t.Helper()
	dir := Copy(t, Folder(t, name))
	fsys, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, component.Autoencoders)
	c := vae.DefaultKLQwenImage21Config()
	for _, part := range Components(t, fsys) {
		a, ok := part.Model.(vae.Autoencoder)
		if !ok {
			continue
		}
		levels, base := bits.Len(uint(a.ScaleFactor())), 6
		c.BaseDim, c.DecoderBaseDim, c.ZDim, c.NumResBlocks = 4, &base, a.LatentChannels(), 1
		c.DimMult, c.TemperalDownsample = make([]int, levels), make([]bool, levels-1)
		for i := range levels {
			c.DimMult[i] = min(2, 1+i)
		}
		c.LatentsMean, c.LatentsStd = c.LatentsMean[:c.ZDim], c.LatentsStd[:c.ZDim]
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	config := map[string]any{}
	data, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	config["_class_name"] = component.AutoencoderKLQwenImage21.Name
	if err == nil {
		data, err = json.Marshal(config)
	}
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, component.ConfigFile), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	WriteRandom(t, filepath.Join(folder, "diffusion_pytorch_model.safetensors"), vae.NewKLQwenImage21(c), rand.New(rand.NewPCG(3, 4)))
	return dir
}
