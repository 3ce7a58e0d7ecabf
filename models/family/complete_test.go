package family_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

const root = "../../"

// text returns the contents of some files.
func text(t *testing.T, patterns ...string) string {
	t.Helper()
	var b strings.Builder
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(data)
		}
	}
	return b.String()
}

// TestFamiliesAreComplete checks that families have everything that docs/adding-a-family.md lists.
func TestFamiliesAreComplete(t *testing.T) {
	pages, reference := text(t, "docs/models/*.md"), text(t, "scripts/reference/gomflux_reference/families/*.py")
	goldens, changes, readme := text(t, "models/testdata/*/model/*model_index.json"), text(t, "CHANGELOG.md"), text(t, "README.md")
	for _, f := range family.All {
		lacks := func(what string) {
			t.Errorf("%s lacks %s (docs/adding-a-family.md)", f.Name, what)
		}
		if f.Help.Guidance == "" {
			lacks("Help.Guidance: how it counts guidance")
		}
		if len(f.Models) == 0 {
			lacks("Models: what is published of it")
		}
		if !strings.Contains(changes, f.Name) {
			lacks("a line in CHANGELOG.md")
		}
		for _, c := range f.Pipelines {
			for what, in := range map[string]string{
				"a page in docs/models that names it": pages, "its file in scripts/reference/gomflux_reference/families": reference,
				"a golden in models/testdata": goldens, "a line in README.md": readme,
			} {
				if !strings.Contains(in, c.Name) {
					lacks(c.Name + ": " + what)
				}
			}
			roles := map[component.Role]bool{}
			for _, m := range c.Components {
				roles[m.Class.Role] = true
				roles[component.Tokenizer] = roles[component.Tokenizer] || m.Class.Tokenizes()
			}
			for role, what := range map[component.Role]string{
				component.Transformer: "a transformer", component.Autoencoder: "an autoencoder", component.TextEncoder: "a text encoder",
				component.Tokenizer: "a tokenizer", component.Scheduler: "a scheduler",
			} {
				if !roles[role] {
					lacks(c.Name + ": " + what + " among its Components")
				}
			}
			if c.References > 0 && f.Help.Editing == "" {
				lacks("Help.Editing and Help.Editors: which pictures it edits")
			}
		}
	}
}

// TestClassesAreComplete checks that component classes have everything too.
func TestClassesAreComplete(t *testing.T) {
	used := map[*component.Class]bool{component.VideoAutoencoderKL: true} // of SeedVR2, which is no pipeline
	for _, f := range family.All {
		for _, c := range f.Pipelines {
			for _, m := range c.Components {
				used[m.Class] = true
			}
		}
	}
	for _, c := range component.All {
		lacks := func(missing bool, what string) {
			if missing {
				t.Errorf("%s lacks %s (docs/adding-a-family.md)", c.Name, what)
			}
		}
		lacks(!used[c] && !c.Standalone, "a pipeline in models/family that has it")
		libraries := []string{"diffusers", "transformers"}
		if c.Role == component.Upscaler || c == component.VideoAutoencoderKL {
			libraries = []string{"basicsr", "seedvr"}
		}
		lacks(!slices.Contains(libraries, c.Library), "a Library, "+strings.Join(libraries, " or "))
		lacks(c.Folder == "", "a Folder, that pipelines have it in")
		lacks(c.Infer == nil, "Infer: its config by the shapes of its tensors")
		lacks(len(c.Original) == 0, "Original: a table by which single files are known")
		lacks(c.Role == component.Transformer && c.FLOPs == nil, "FLOPs, for benchmarks")
		lacks(c.Role == component.Transformer && c.LoRAHint == nil, "LoRAHint: how LoRAs for it are told")
		lacks(c.Role == component.Transformer && len(c.Quantization) == 0, "Quantization: which layers keep more bits")
		lacks(c.Role == component.Autoencoder && c.NewAutoencoder == nil, "NewAutoencoder")
		lacks(c.Role == component.Autoencoder && c.LatentKey == "", "LatentKey")
		lacks(c.Role == component.Upscaler && c.NewUpscaler == nil, "NewUpscaler")
	}
}
