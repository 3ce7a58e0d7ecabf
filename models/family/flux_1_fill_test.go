package family_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// declareChanged declares a golden's model with some keys of configs changed, by file.
func declareChanged(t *testing.T, golden string, changes map[string]map[string]any) (*family.Declared, error) {
	t.Helper()
	folder, files := os.DirFS(root+"models/testdata/"+golden+"/model"), fstest.MapFS{}
	err := fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".json" || strings.Contains(name, "tokenizer") {
			return err
		}
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		config := map[string]any{}
		if err := json.Unmarshal(text, &config); err != nil {
			return err
		}
		for key, value := range changes[name] {
			config[key] = value
		}
		text, err = json.Marshal(config)
		files[name] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return family.Declare(&component.Folder{FS: files, Points: &hooks.Points{}}, x)
}

// TestFillChannels checks the transformer's channels against those of latents and mask.
func TestFillChannels(t *testing.T) {
	for want, change := range map[string]map[string]any{
		"": {},
		"in_channels 97: expected 4 for each channel": {"in_channels": 97},
		"in_channels 100 and out_channels 16":         {"in_channels": 100},
		"in_channels 16 and out_channels 16":          {"in_channels": 16, "out_channels": nil},
		"in_channels 96 and out_channels 32: expected 96 (16 for the latents, 16 for the masked image's and 64 for the mask": {
			"out_channels": 32},
		"out_channels 15: expected 4 for each channel": {"out_channels": 15},
	} {
		_, err := declareChanged(t, "flux1-fill", map[string]map[string]any{"transformer/config.json": change})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, expected %q", change, err, want)
		}
	}
	_, err := declareChanged(t, "flux1-fill", map[string]map[string]any{"model_index.json": {"_class_name": "FluxPipeline"}})
	if err == nil || !strings.Contains(err.Error(), "transformer/config.json: in_channels 96 and out_channels 16: must be equal") {
		t.Errorf("as FluxPipeline: %v", err)
	}
}

// TestOtherClasses has an index that names other classes than those that run.
func TestOtherClasses(t *testing.T) {
	for _, c := range []struct {
		golden, folder, class, want string
	}{
		{"zimage-ordinary", "transformer", "FluxTransformer2DModel",
			`transformer is "FluxTransformer2DModel", expected ZImageTransformer2DModel`},
		{"zimage-ordinary", "text_encoder", "T5EncoderModel", `text_encoder is "T5EncoderModel", expected Qwen3`},
		{"zimage-ordinary", "vae", "AutoencoderDC", `vae is "AutoencoderDC", expected AutoencoderKL`},
		{"zimage-ordinary", "scheduler", "FlowMatchHeunDiscreteScheduler",
			`scheduler is "FlowMatchHeunDiscreteScheduler", expected FlowMatchEulerDiscreteScheduler`},
		{"flux1-fill", "text_encoder_2", "CLIPTextModel", `text_encoder_2 is "CLIPTextModel", expected T5EncoderModel`},
	} {
		changes := map[string]any{c.folder: []string{"diffusers", c.class}}
		_, err := declareChanged(t, c.golden, map[string]map[string]any{"model_index.json": changes})
		if err == nil || !strings.Contains(err.Error(), "model_index.json: "+c.want) {
			t.Errorf("%s: %v, expected %q", c.folder, err, c.want)
		}
	}
}

// TestFillMask compares each channel of each token with the pixel of the mask that it stands for.
func TestFillMask(t *testing.T) {
	const h, w, scale = 24, 40, 4
	d, err := declareChanged(t, "flux1-fill", nil)
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		mask := mlx.Arange(0, h*w, 1, mlx.Float32).Reshape(1, 1, h, w)
		got := d.Pipeline.(family.Filler).FillMask(mask)
		mlxtest.Same(t, "shape", got.Shape(), []int{1, h / 8 * w / 8, 64})
		values := got.Floats()
		for y := range h {
			for x := range w {
				token := y/(2*scale)*(w/(2*scale)) + x/(2*scale)
				channel := y%scale*scale + x%scale
				feature := 4*channel + y/scale%2*2 + x/scale%2
				if v := values[64*token+feature]; v != float32(y*w+x) {
					t.Fatalf("feature %d of token %d is pixel %g, expected %d", feature, token, v, y*w+x)
				}
			}
		}
	})
}
