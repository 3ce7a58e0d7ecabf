package catalog_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// TestPublishedConfigs counts the parameters that the configs of published models declare, in
// billions, and compares them with those of the published weights. Text encoders lack the layers
// whose output a pipeline does not use, and Qwen-Image's autoencoder the convolutions over time.
func TestPublishedConfigs(t *testing.T) {
	z := map[string]float64{"transformer": 6.155, "text_encoder": 3.92, "vae": 0.0838}
	flux := map[string]float64{"transformer": 11.901, "text_encoder": 0.123, "text_encoder_2": 4.762, "vae": 0.0838}
	schnell := map[string]float64{"transformer": 11.891, "text_encoder": 0.123, "text_encoder_2": 4.762, "vae": 0.0838}
	klein4 := map[string]float64{"transformer": 3.876, "text_encoder": 3.11, "vae": 0.0840}
	klein9 := map[string]float64{"transformer": 9.078, "text_encoder": 5.83, "vae": 0.0840}
	qwen := map[string]float64{"transformer": 20.43, "text_encoder": 7.07, "vae": 0.1246}
	edit := map[string]float64{"transformer": 20.43, "text_encoder": 7.75, "vae": 0.1246}
	qwen21 := map[string]float64{"transformer": 7.115, "text_encoder": 8.145, "vae": 0.331}
	krea2 := map[string]float64{"transformer": 12.82, "text_encoder": 3.92, "vae": 0.1246}
	flux3 := map[string]float64{"transformer": 5.549, "text_encoder": 3.619, "vae": 0.0840}
	flux3Base := map[string]float64{"transformer": 5.538, "text_encoder": 3.619, "vae": 0.0840}
	dev := map[string]float64{"transformer": 32.22, "text_encoder": 17.34, "vae": 0.0840}
	ernie := map[string]float64{"transformer": 8.033, "text_encoder": 3.313, "vae": 0.0840}
	want := map[string]map[string]float64{
		"anima":       {"transformer": 1.956, "text_conditioner": 0.1347, "text_encoder": 0.596, "vae": 0.1246},
		"flux2-dev":   dev,
		"flux3-klein": flux3, "flux3-klein-base": flux3Base,
		"krea-2": krea2, "krea-2-raw": krea2,
		"ernie-image": ernie, "ernie-image-turbo": ernie,
		"qwen-image-2.1": qwen21, "qwen-image-2.1-turbo": qwen21,
		"z-image": z, "z-image-turbo": z, "flux1-schnell": schnell, "flux1-dev": flux, "flux1-krea-dev": flux,
		"flux1-kontext-dev": flux, "flux1-fill-dev": flux,
		"flux2-klein-4b": klein4, "flux2-klein-base-4b": klein4, "flux2-klein-9b": klein9,
		"flux2-klein-9b-kv": klein9, "flux2-klein-base-9b": klein9, "qwen-image": qwen, "qwen-image-2512": qwen,
		"qwen-image-edit": edit, "qwen-image-edit-2509": edit, "qwen-image-edit-2511": edit,
		"qwen-image-layered": qwen,
	}
	for _, preset := range catalog.Presets {
		counts := parameters(t, preset.Name)
		if len(counts) != len(want[preset.Name]) {
			t.Errorf("%s: components with weights are %v", preset.Name, counts)
		}
		for dir, n := range counts {
			if published := want[preset.Name][dir]; math.Abs(n-published) > published/200 {
				t.Errorf("%s: %s has %.4g billion parameters, expected %.4g", preset.Name, dir, n, published)
			}
		}
	}
}

// parameters returns the number of parameters of each component in billions.
func parameters(t *testing.T, name string) map[string]float64 {
	t.Helper()
	s, err := catalog.FindConfigs(name)
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.Index()
	if err != nil {
		t.Fatal(err)
	}
	d, err := family.Declare(&component.Folder{FS: s.FS, Points: &hooks.Points{}}, x)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, c := range d.Components {
		for _, p := range nn.Parameters(c.Model) {
			n := 1e-9
			for _, size := range p.Stored() {
				n *= float64(size)
			}
			counts[c.Dir] += n
		}
	}
	return counts
}

func TestFindConfigs(t *testing.T) {
	folder := modeltest.Folder(t, "zimage-ordinary")
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Chdir(t.TempDir())
	for name, want := range map[string]string{
		"z-image-turbo": "z-image-turbo", "ZIMAGE": "z-image", "Qwen/Qwen-Image": "qwen-image",
	} {
		if s, err := catalog.FindConfigs(name); err != nil || s.Name != want || s.Defaults == nil {
			t.Errorf("%s: found %+v, %v", name, s, err)
		}
	}
	// a folder comes first
	text, err := os.ReadFile(filepath.Join(folder, index.File))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("z-image", 0o755); err != nil {
		t.Fatal(err)
	}
	if s, err := catalog.FindConfigs("z-image"); err != nil || s.Folder != "" {
		t.Errorf("with an empty folder of its name: found %+v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join("z-image", index.File), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := catalog.FindConfigs("z-image"); err != nil || s.Folder != "z-image" {
		t.Errorf("with a folder of its name: found %+v, %v", s, err)
	}

	if _, err := catalog.FindConfigs("nowhere"); !errors.Is(err, errs.ErrNotFound) ||
		!strings.Contains(err.Error(), "no model nowhere: expected one of z-image-turbo, ") {
		t.Errorf("error %v", err)
	}
	if err := os.Mkdir("empty", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.FindConfigs("empty"); err == nil || !strings.Contains(err.Error(), "empty: has no model_index.json") {
		t.Errorf("error %v", err)
	}
	if _, err := catalog.FindConfigs(""); err == nil {
		t.Error("no error for an empty name")
	}
}
