package catalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

func TestFindPreset(t *testing.T) {
	tests := map[string]string{
		"z-image-turbo":                        "z-image-turbo",
		"Tongyi-MAI/Z-Image-Turbo":             "z-image-turbo",
		"./Z-Image-Turbo":                      "z-image-turbo",
		"/data/models/z-image-turbo":           "z-image-turbo",
		"Z-Image/":                             "z-image",
		"Tongyi-MAI/Z-Image":                   "z-image",
		"Z-Image-Turbo-mine":                   "",
		"shapes":                               "",
		"dev":                                  "flux1-dev",
		"Schnell":                              "flux1-schnell",
		"flux2-klein-4B":                       "flux2-klein-4b",
		"klein-base-9b":                        "flux2-klein-base-9b",
		"black-forest-labs/flux.2-klein-9b-kv": "flux2-klein-9b-kv",
		"/data/FLUX.1-schnell":                 "flux1-schnell",
		"models/flux1-dev":                     "flux1-dev",
		"qwen-image":                           "qwen-image",
		"Qwen-Image/":                          "qwen-image",
		"models/qwen-image-edit-2509":          "qwen-image-edit-2509",
		"Qwen/Qwen-Image-Other":                "",
		"./dev":                                "",
		"models/schnell":                       "",
		".":                                    "",
		"/c/models--Tongyi-MAI--Z-Image-Turbo/snapshots/c0ffee/": "z-image-turbo",
		"/c/models--someone--Z-Image/snapshots/c0ffee":           "z-image",
		"/c/models--someone--mine/snapshots/Z-Image":             "",
	}
	for model, want := range tests {
		if p, ok := catalog.FindPreset(model); p.Name != want || ok != (want != "") {
			t.Errorf("%s: preset %q, %v, expected %q", model, p.Name, ok, want)
		}
	}

	dir := filepath.Join(t.TempDir(), "Z-Image-Turbo", "vae")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if p, ok := catalog.FindPreset(".."); !ok || p.Name != "z-image-turbo" {
		t.Errorf("..: preset %q, %v, expected z-image-turbo", p.Name, ok)
	}
}

// TestPresets holds the table against what mflux and diffusers call the models
// and run them with.
func TestPresets(t *testing.T) {
	apache2 := family.Licence{Name: "Apache-2.0", Commercial: family.CommercialAllowed}
	flux1Dev := family.Licence{Name: "FLUX.1 [dev] Non-Commercial License", Commercial: family.CommercialForbidden}
	flux2 := family.Licence{Name: "FLUX Non-Commercial License", Commercial: family.CommercialForbidden}
	flux2Dev := family.Licence{Name: "FLUX [dev] Non-Commercial License", Commercial: family.CommercialForbidden}
	flux3 := family.Licence{Name: "FLUX Kommunity License v1.0", Commercial: family.CommercialConditional}
	qwen21 := family.Licence{Name: "Qwen Research License", Commercial: family.CommercialForbidden}
	anima := family.Licence{Name: "CircleStone Labs Non-Commercial License", Commercial: family.CommercialForbidden}
	krea2 := family.Licence{Name: "Krea 2 Community License", Commercial: family.CommercialConditional}
	tests := []struct {
		names string
		want  catalog.Preset
	}{
		{"zimage-turbo", catalog.Preset{Repo: "Tongyi-MAI/Z-Image-Turbo", Licence: apache2,
			Defaults: family.Defaults{Steps: 8, Guidance: 0, MaxSequenceLength: 512}}},
		{"zimage", catalog.Preset{Repo: "Tongyi-MAI/Z-Image", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 5, MaxSequenceLength: 512}}},
		{"schnell flux-schnell", catalog.Preset{Repo: "black-forest-labs/FLUX.1-schnell", Licence: apache2, Gated: true,
			Defaults: family.Defaults{Steps: 4, Guidance: 0, MaxSequenceLength: 256}}},
		{"dev flux-dev", catalog.Preset{Repo: "black-forest-labs/FLUX.1-dev", Licence: flux1Dev,
			Gated: true, Defaults: family.Defaults{Steps: 28, Guidance: 3.5, MaxSequenceLength: 512}}},
		{"krea-dev dev-krea", catalog.Preset{Repo: "black-forest-labs/FLUX.1-Krea-dev",
			Licence: flux1Dev, Gated: true,
			Defaults: family.Defaults{Steps: 28, Guidance: 3.5, MaxSequenceLength: 512}}},
		{"kontext dev-kontext flux1-kontext-dev", catalog.Preset{
			Repo: "black-forest-labs/FLUX.1-Kontext-dev", Licence: flux1Dev, Gated: true,
			Defaults: family.Defaults{Steps: 28, Guidance: 2.5, MaxSequenceLength: 512},
		}},
		{"fill dev-fill flux1-fill-dev", catalog.Preset{
			Repo: "black-forest-labs/FLUX.1-Fill-dev", Licence: flux1Dev, Gated: true,
			Defaults: family.Defaults{Steps: 50, Guidance: 30, MaxSequenceLength: 512},
		}},
		{"flux2-dev FLUX.2-dev", catalog.Preset{Repo: "black-forest-labs/FLUX.2-dev", Licence: flux2Dev, Gated: true,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, MaxSequenceLength: 512}}},
		{"flux3-klein flux3 flux-3-image-klein", catalog.Preset{Repo: "black-forest-labs/flux-3-image-klein", Licence: flux3, Gated: true,
			Defaults: family.Defaults{Steps: 16, Guidance: 1, MaxSequenceLength: 8192}}},
		{"flux3-klein-base flux-3-image-klein-base", catalog.Preset{Repo: "black-forest-labs/flux-3-image-klein-base", Licence: flux3,
			Gated: true, Defaults: family.Defaults{Steps: 50, Guidance: 3.5, MaxSequenceLength: 8192}}},
		{"ernie-image ERNIE-Image", catalog.Preset{Repo: "baidu/ERNIE-Image", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, MaxSequenceLength: 512}}},
		{"ernie-image-turbo ERNIE-Image-Turbo", catalog.Preset{Repo: "baidu/ERNIE-Image-Turbo", Licence: apache2,
			Defaults: family.Defaults{Steps: 8, Guidance: 1, MaxSequenceLength: 512}}},
		{"flux2-klein klein-4B flux2-klein-4B", catalog.Preset{Repo: "black-forest-labs/FLUX.2-klein-4B", Licence: apache2,
			Defaults: family.Defaults{Steps: 4, Guidance: 1, MaxSequenceLength: 512}}},
		{"klein-9b flux2-klein-9B", catalog.Preset{Repo: "black-forest-labs/FLUX.2-klein-9B",
			Licence: flux2, Gated: true, Defaults: family.Defaults{Steps: 4, Guidance: 1, MaxSequenceLength: 512}}},
		{"klein-9b-kv flux2-klein-9b-KV", catalog.Preset{Repo: "black-forest-labs/FLUX.2-klein-9b-kv",
			Licence: flux2, Gated: true, Defaults: family.Defaults{Steps: 4, Guidance: 1, MaxSequenceLength: 512}}},
		{"flux2-base-4b klein-base-4b", catalog.Preset{Repo: "black-forest-labs/FLUX.2-klein-base-4B", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, MaxSequenceLength: 512}}},
		{"flux2-base-9b klein-base-9b", catalog.Preset{Repo: "black-forest-labs/FLUX.2-klein-base-9B",
			Licence: flux2, Gated: true,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, MaxSequenceLength: 512}}},
		{"qwen", catalog.Preset{Repo: "Qwen/Qwen-Image", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", MaxSequenceLength: 512}}},
		{"qwen-image-2512 qwen-2512", catalog.Preset{Repo: "Qwen/Qwen-Image-2512", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", MaxSequenceLength: 512}}},
		{"qwen-edit qwen/qwen-image-edit", catalog.Preset{Repo: "Qwen/Qwen-Image-Edit", Licence: apache2,
			Defaults: family.Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", MaxSequenceLength: 512}}},
		{"qwen-edit-2509 qwen-edit-plus", catalog.Preset{Repo: "Qwen/Qwen-Image-Edit-2509", Licence: apache2,
			Defaults: family.Defaults{Steps: 40, Guidance: 4, NegativePrompt: " ", MaxSequenceLength: 512}}},
		{"qwen-layered", catalog.Preset{Repo: "Qwen/Qwen-Image-Layered", Licence: apache2, Defaults: family.Defaults{
			Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 640, Width: 640, MaxSequenceLength: 512}}},
		{"qwen-edit-2511 qwen-image-edit-2511", catalog.Preset{Repo: "Qwen/Qwen-Image-Edit-2511", Licence: apache2,
			Defaults: family.Defaults{Steps: 40, Guidance: 4, NegativePrompt: " ", MaxSequenceLength: 512}}},
		{"qwen-2.1 qwen-image-21", catalog.Preset{Repo: "Qwen/Qwen-Image-2.1", Licence: qwen21,
			Defaults: family.Defaults{Steps: 40, Guidance: 1, MaxSequenceLength: 512}}},
		{"qwen-2.1-turbo qwen-image-21-turbo qwen-image-turbo-21", catalog.Preset{Repo: "Qwen/Qwen-Image-2.1-Turbo",
			Licence: qwen21, Defaults: family.Defaults{Steps: 8, Guidance: 1, MaxSequenceLength: 512}}},
		{"krea-2 krea2 krea-2-turbo krea2-turbo krea/Krea-2-Turbo", catalog.Preset{Repo: "krea/Krea-2-Turbo", Licence: krea2, Gated: true,
			Defaults: family.Defaults{Steps: 8, MaxSequenceLength: 512}}},
		{"krea-2-raw krea2-raw", catalog.Preset{Repo: "krea/Krea-2-Raw", Licence: krea2, Gated: true,
			Defaults: family.Defaults{Steps: 52, Guidance: 3.5, MaxSequenceLength: 512}}},
		{"anima anima-base", catalog.Preset{Repo: "circlestone-labs/Anima-Base-v1.0-Diffusers", Licence: anima,
			Defaults: family.Defaults{Steps: 30, Guidance: 4, MaxSequenceLength: 512}}},
	}
	if len(tests) != len(catalog.Presets) {
		t.Errorf("%d presets, expected %d", len(catalog.Presets), len(tests))
	}
	for _, test := range tests {
		for name := range strings.FieldsSeq(test.names) {
			p, _ := catalog.FindPreset(name)
			if d := &test.want.Defaults; d.Height == 0 {
				d.Height, d.Width = 1024, 1024
			}
			text := func(p *catalog.Preset) string {
				return fmt.Sprintf("%s, %s, commercial use %s, gated %v, %+v", p.Repo, p.Licence.Name, p.Licence.Commercial, p.Gated,
					p.Defaults)
			}
			if got, want := text(&p), text(&test.want); got != want {
				t.Errorf("%s: %s, expected %s", name, got, want)
			}
		}
	}
}
