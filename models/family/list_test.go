package family

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/models/index"
)

// diffusersClasses are the pipelines of the supported families in diffusers 0.42.1, except the modular
// ones, which have no model_index.json: the class that has the same components, or what the error says.
var diffusersClasses = map[string]string{
	"FluxPipeline": "FluxPipeline", "FluxImg2ImgPipeline": "FluxPipeline", "FluxInpaintPipeline": "FluxPipeline",
	"FluxKontextPipeline": "FluxKontextPipeline", "FluxKontextInpaintPipeline": "FluxKontextPipeline",
	"FluxFillPipeline":    "FluxFillPipeline",
	"FluxControlPipeline": "a control image", "FluxControlImg2ImgPipeline": "a control image",
	"FluxControlInpaintPipeline": "a control image",
	"FluxControlNetPipeline":     "a ControlNet", "FluxControlNetImg2ImgPipeline": "a ControlNet",
	"FluxControlNetInpaintPipeline": "a ControlNet", "FluxPriorReduxPipeline": "prompt embeddings of an image",
	"Flux2KleinPipeline": "Flux2KleinPipeline", "Flux2KleinInpaintPipeline": "Flux2KleinPipeline",
	"Flux2KleinKVPipeline": "Flux2KleinKVPipeline", "Flux2Pipeline": "Flux2Pipeline",
	"Flux3ModularPipeline": "Flux3ModularPipeline", "Flux3DistilledModularPipeline": "Flux3DistilledModularPipeline",
	"QwenImagePipeline": "QwenImagePipeline", "QwenImageImg2ImgPipeline": "QwenImagePipeline",
	"QwenImageInpaintPipeline": "QwenImagePipeline", "QwenImageEditPipeline": "QwenImageEditPipeline",
	"QwenImageEditInpaintPipeline": "QwenImageEditPipeline", "QwenImageEditPlusPipeline": "QwenImageEditPlusPipeline",
	"QwenImageLayeredPipeline": "QwenImageLayeredPipeline", "QwenImageControlNetPipeline": "a ControlNet",
	"QwenImageControlNetInpaintPipeline": "a ControlNet", "QwenImage21Pipeline": "QwenImage21Pipeline",
	"ZImagePipeline": "ZImagePipeline", "ZImageImg2ImgPipeline": "ZImagePipeline", "ZImageInpaintPipeline": "ZImagePipeline",
	"ZImageOmniPipeline": "SigLIP", "ZImageControlNetPipeline": "a ControlNet",
	"ZImageControlNetInpaintPipeline": "a ControlNet", "Krea2Pipeline": "Krea2Pipeline",
	"AnimaModularPipeline":     "AnimaModularPipeline",
	"ErnieImagePipeline":       "ErnieImagePipeline",
	"StableDiffusion3Pipeline": `"StableDiffusion3Pipeline"; this version runs`,
}

// TestClasses checks what a folder of each pipeline class is taken for.
func TestClasses(t *testing.T) {
	for name, want := range diffusersClasses {
		switch c, err := Of(fstest.MapFS{}, index.Index{Class: name}); {
		case err == nil && c.Name != want:
			t.Errorf("%s is taken for %s, expected %s", name, c.Name, want)
		case err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, expected %q", name, err, want)
		}
	}
	for _, name := range Classes() {
		for _, also := range append(Find(name).Also, name) {
			if diffusersClasses[also] != name {
				t.Errorf("%s stands for %s, and diffusersClasses has %q", also, name, diffusersClasses[also])
			}
		}
	}
}

// TestOwnSigmas checks the schedule of Qwen-Image-2.1-Turbo for other numbers of steps with the values of
// mflux 0.24.0 (Qwen21TurboScheduler).
func TestOwnSigmas(t *testing.T) {
	own := ownSigmas{1, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568}
	for _, want := range [][]float32{
		own, {1}, {1, 0.89508}, {1, 0.935810685, 0.798276663}, {1, 0.963889182, 0.920316815, 0.855134428, 0.588547587},
		{1, 0.98563534, 0.970362008, 0.95418, 0.935810685, 0.916110694, 0.89508, 0.861792028, 0.798276663, 0.704534, 0.511223316,
			0.276378661},
	} {
		near := func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-7 }
		if got := own.Sigmas(len(want)); !slices.EqualFunc(got, want, near) {
			t.Errorf("%d steps: %v, expected %v", len(want), got, want)
		}
	}
}
