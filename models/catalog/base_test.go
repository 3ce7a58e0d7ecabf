package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/errs"
)

// TestBase finds the model that a file is completed by.
func TestBase(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	place := func(repo, model string) {
		t.Helper()
		dir := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", "c0")
		if err := os.CopyFS(dir, os.DirFS(testModel(model))); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	write := func(name, model string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": modeltest.Original(t, testModel(model)+"/transformer")})
		return path
	}
	file := write("tuned.safetensors", "flux1-dev-small")
	fail := func(path, base string, is error, texts ...string) {
		t.Helper()
		_, err := FindWith(path, base)
		if err == nil || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v", path, err)
			return
		}
		mlxtest.Contains(t, err.Error(), texts...)
	}
	find := func(path, base string) {
		t.Helper()
		s, err := Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if s.Base != base {
			t.Errorf("%s: base %s, expected %s", path, s.Base, base)
		}
		if preset, _ := FindPreset(base); *s.Defaults != preset.Defaults {
			t.Errorf("%s: defaults %+v, expected those of %s", path, s.Defaults, base)
		}
	}

	fail(file, "", errs.ErrNotFound, file, "FluxTransformer2DModel", "gomflux pull flux1-dev", "--base-model")
	place("black-forest-labs/FLUX.1-schnell", "flux1-schnell-ordinary")
	find(file, "flux1-dev") // with the text encoders and autoencoder of FLUX.1-schnell
	place("black-forest-labs/FLUX.1-Krea-dev", "flux1-dev-small")
	find(file, "black-forest-labs/FLUX.1-Krea-dev") // the only one with guidance
	find(write("tuned-s.safetensors", "flux1-schnell-ordinary"), "black-forest-labs/FLUX.1-schnell")
	place("black-forest-labs/FLUX.1-dev", "flux1-dev-small")
	find(file, "black-forest-labs/FLUX.1-dev") // the other one is alike
	find(write("flux1-krea-dev_fp8.safetensors", "flux1-dev-small"), "black-forest-labs/FLUX.1-Krea-dev")

	saved := filepath.Join(dir, "FLUX.1-Krea-dev-mflux-4bit")
	if err := os.CopyFS(saved, os.DirFS(testModel("flux1-dev-small")+"/transformer")); err != nil {
		t.Fatal(err)
	}
	find(saved, "black-forest-labs/FLUX.1-Krea-dev")

	// what its tensors do not tell
	tuned := write("mine.safetensors", "zimage-ordinary")
	turbo := write("z_image_turbo_bf16.safetensors", "zimage-ordinary")
	place("Tongyi-MAI/Z-Image-Turbo", "zimage-ordinary")
	find(tuned, "Tongyi-MAI/Z-Image-Turbo")
	likeOther := write("z_image_tuned.safetensors", "zimage-ordinary")
	find(likeOther, "z-image") // with the text encoder and autoencoder of Z-Image-Turbo
	if s, err := FindWith(likeOther, "z-image"); err != nil || s.Base != "z-image" {
		t.Errorf("%+v, %v", s, err)
	} else {
		checkWhole(t, s)
		var config map[string]any
		if err := checkpoint.ReadJSON(s.FS, "scheduler/scheduler_config.json", &config); err != nil || config["shift"] != 6.0 {
			t.Errorf("scheduler %v, %v, expected that of Z-Image", config, err)
		}
	}
	fail(likeOther, "qwen-image", errs.ErrNotFound, "pull Qwen/Qwen-Image")
	place("Tongyi-MAI/Z-Image", "zimage-ordinary")
	fail(tuned, "", errs.ErrRequest, "z-image-turbo, z-image", "--base-model")
	find(turbo, "Tongyi-MAI/Z-Image-Turbo")

	fail(turbo, "flux1-dev", nil, turbo, "ZImageTransformer2DModel", "FLUX.1-dev", "FluxTransformer2DModel")
	fail(turbo, file, nil, file, "must be a whole model")
	fail(turbo, turbo, nil, "must be a whole model")
	fail(turbo, "nobody/nothing", errs.ErrNotFound, "nobody/nothing")
	fail(testModel("zimage-ordinary"), "flux1-dev", errs.ErrRequest, "is a whole model")
	fail(testModel("zimage-ordinary")+"/vae", "flux1-dev", errs.ErrRequest, "neither a transformer")
	// what cannot be completed can be looked at
	lone := filepath.Join(dir, "lone")
	if err := os.CopyFS(lone, os.DirFS(testModel("flux2-klein")+"/transformer")); err != nil {
		t.Fatal(err)
	}
	if s, err := Find(lone); err != nil || s.Err == nil {
		t.Errorf("%+v, %v", s, err)
	} else {
		mlxtest.Contains(t, s.Err.Error(), lone, "Flux2Transformer2DModel", "--base-model")
		if _, err := s.Index(); err != s.Err {
			t.Errorf("%v, expected %v", err, s.Err)
		}
		if ck, err := checkpoint.OpenCheckpoint(s.FS, "."); err != nil || len(ck.Tensors) == 0 {
			t.Errorf("%+v, %v", ck, err)
		} else {
			ck.Close()
		}
	}
	// of no published size
	fail(write("flux-2.safetensors", "flux2-klein"), "", nil, "no known model", "--base-model")
}

// TestFileNames tells models with the same shapes apart by the names of their files.
func TestFileNames(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	dev, _ := FindPreset("flux1-dev")
	edit := dev
	edit.Name, edit.Aliases, edit.Repo = "flux1-edit-dev", nil, "black-forest-labs/FLUX.1-Edit-dev"
	edit.Index, edit.FileNames = map[string]any{"edits": true}, []string{"edit", "change"}
	all := Presets
	t.Cleanup(func() { Presets = all })
	Presets = append([]Preset{edit}, all...)
	dir := t.TempDir()
	file := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		tensors := modeltest.Original(t, testModel("flux1-dev-small")+"/transformer")
		modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": tensors})
		return path
	}
	files := map[string]string{
		"flux1-edit-dev.safetensors":    edit.Repo,
		"flux1-dev-EDIT-q8.safetensors": edit.Repo,
		"dev_changed.safetensors":       edit.Repo,
		"flux1-dev.safetensors":         dev.Repo,
		"tuned.safetensors":             dev.Repo,
	}
	find := func() {
		t.Helper()
		for name, repo := range files {
			s, err := Find(file(name))
			folder := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
			if others, _ := os.ReadDir(cache); !exists(folder) && len(others) > 0 {
				if err != nil || s.Base != presetName(t, repo) { // with the other one's text encoders and autoencoder
					t.Errorf("%s: %+v, %v, expected base %s", name, s, err, repo)
				}
			} else if !exists(folder) {
				if !errors.Is(err, errs.ErrNotFound) || !strings.Contains(err.Error(), "gomflux pull "+presetName(t, repo)) {
					t.Errorf("%s: %v, expected a hint to pull %s", name, err, repo)
				}
			} else if err != nil || s.Base != repo {
				t.Errorf("%s: %+v, %v, expected base %s", name, s, err, repo)
			}
		}
	}
	find()
	for _, repo := range []string{edit.Repo, dev.Repo} { // with one of them, then both
		dir := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", "c0")
		if err := os.CopyFS(dir, os.DirFS(testModel("flux1-dev-small"))); err != nil {
			t.Fatal(err)
		}
		find()
	}
	// the base model's name decides, whatever the file is called
	if s, err := FindWith(file("flux1-dev.safetensors"), edit.Name); err != nil || s.Base != edit.Repo {
		t.Errorf("%+v, %v", s, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func presetName(t *testing.T, repo string) string {
	t.Helper()
	preset, ok := FindPreset(repo)
	if !ok {
		t.Fatalf("%s: no preset", repo)
	}
	return preset.Name
}

// TestOtherBase completes a file by models that have other components.
func TestOtherBase(t *testing.T) {
	base := testModel("zimage-ordinary")
	parts := map[string]map[string]*checkpoint.Array{
		"model.diffusion_model.":           modeltest.Original(t, base+"/transformer"),
		"text_encoders.t5xxl.transformer.": modeltest.Read(t, testModel("flux1-schnell-ordinary")+"/text_encoder_2"),
	}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	modeltest.Write(t, path, nil, parts)
	for base, text := range map[string]string{
		base: "contains a T5EncoderModel, but its base model " + base + " has no such component",
		testModel("flux1-schnell-ordinary"): "contains a ZImageTransformer2DModel, but its base model " +
			testModel("flux1-schnell-ordinary") + " has a FluxTransformer2DModel",
	} {
		if _, err := FindWith(path, base); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("base %s: error %v, expected %q", base, err, text)
		}
	}
}

// TestBaseByChannels: a transformer that sees more channels than the latents' is told by them,
// whatever its file is called.
func TestBaseByChannels(t *testing.T) {
	for _, c := range []struct {
		in   int
		out  any
		want string
	}{{384, 64, "flux1-fill-dev"}, {64, nil, "flux1-dev flux1-krea-dev"}, {128, 64, ""}} {
		known := map[string]any{"guidance_embeds": true, "in_channels": c.in, "out_channels": c.out}
		var names []string
		for _, p := range basesOf(&bareComponent{class: "FluxTransformer2DModel", known: known}, "tuned") {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%d channels: base models %q, expected %q", c.in, got, c.want)
		}
	}
}
