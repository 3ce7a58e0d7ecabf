package family_test

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// published calls a function for every published model.
func published(t *testing.T, check func(t *testing.T, m family.Model)) {
	for _, f := range family.All {
		if len(f.Models) == 0 {
			t.Errorf("%s: no models", f.Name)
		}
		for _, m := range f.Models {
			t.Run(m.Name, func(t *testing.T) { check(t, m) })
		}
	}
}

// TestModelNames checks that the names and repositories of models are unique and well-formed.
func TestModelNames(t *testing.T) {
	taken := map[string]string{}
	published(t, func(t *testing.T, m family.Model) {
		for _, name := range append([]string{m.Name, m.Repo}, m.Aliases...) {
			key := strings.ToLower(name)
			if name == "" || name != m.Repo && name != key {
				t.Errorf("%q is no name (they are in lower case)", name)
			}
			if other, ok := taken[key]; ok {
				t.Errorf("%s is a name of %s already", name, other)
			}
			taken[key] = m.Name
		}
		if !hub.IsRepo(m.Repo) {
			t.Errorf("%q is no repository", m.Repo)
		}
		if owner, _, _ := strings.Cut(m.Repo, "/"); owner+"/"+m.RepoName() != m.Repo || m.URL() != "https://huggingface.co/"+m.Repo {
			t.Errorf("%s: named %s, at %s", m.Repo, m.RepoName(), m.URL())
		}
		if m.Gated && !strings.Contains(m.Access(), m.URL()+", ") {
			t.Errorf("access: %s", m.Access())
		}
	})
}

// TestModelDefaults checks that the default settings of models are valid.
func TestModelDefaults(t *testing.T) {
	published(t, func(t *testing.T, m family.Model) {
		d := m.Defaults
		if min(d.Steps, d.Height, d.Width, d.MaxSequenceLength) < 1 || d.Height%16 != 0 || d.Width%16 != 0 {
			t.Errorf("%+v", d)
		}
		if !(d.Guidance >= 0) || math.IsInf(d.Guidance, 0) {
			t.Errorf("guidance %g", d.Guidance)
		}
		if class := family.Find(m.Class); class != nil && !class.NeedsNegativePrompt && d.NegativePrompt != "" {
			t.Errorf("negative prompt %q", d.NegativePrompt)
		}
	})
}

// TestModelConfigs checks that models have all configs that a model needs in addition to its
// weights and tokenizers.
func TestModelConfigs(t *testing.T) {
	seen := map[string]bool{}
	published(t, func(t *testing.T, m family.Model) {
		class := family.Find(m.Class)
		if class == nil {
			t.Fatalf("pipeline class %q is not known", m.Class)
		}
		seen[m.Class] = true
		keys := []string{"shift", "use_dynamic_shifting"}
		if m.Scheduler["use_dynamic_shifting"] == true {
			keys = append(keys, "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")
		}
		for _, key := range keys {
			if m.Scheduler[key] == nil {
				t.Errorf("the scheduler's config has no %s: %v", key, m.Scheduler)
			}
		}
		var c scheduler.ModelConfig
		text, err := json.Marshal(m.Scheduler)
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err == nil {
			err = c.Validate()
		}
		if err != nil {
			t.Errorf("the scheduler's config: %v", err)
		}
		processes := slices.ContainsFunc(class.Components, func(c family.Member) bool { return c.Class.Role == component.Processor })
		if processes != (m.Processor != nil) {
			t.Errorf("%s has a processor: %v, and its config is %v", m.Class, processes, m.Processor)
		}
	})
	if names := slices.Sorted(maps.Keys(seen)); !slices.Equal(names, family.Classes()) {
		t.Errorf("models of %v, expected some of %v", names, family.Classes())
	}
}

// TestMembers checks the folders and classes of the components of every pipeline.
func TestMembers(t *testing.T) {
	for _, name := range family.Classes() {
		class := family.Find(name)
		folders, roles := map[string]bool{}, map[component.Role]bool{}
		for _, m := range class.Components {
			if folders[m.Folder] || m.Folder == "" {
				t.Errorf("%s: two components in %q", name, m.Folder)
			}
			folders[m.Folder], roles[m.Class.Role] = true, true
			roles[component.Tokenizer] = roles[component.Tokenizer] || m.Class.Tokenizes()
			if m.Class.Folder != "" && m.Class.Folder != m.Folder {
				t.Errorf("%s: a %s in %s, and files that do not say have it in %s", name, m.Class.Name, m.Folder, m.Class.Folder)
			}
			if found, ok := class.Member(m.Folder); !ok || found.ClassName() != m.ClassName() {
				t.Errorf("%s: member %s is %+v, %v", name, m.Folder, found, ok)
			}
			if m.Alias != "" && component.Find(m.Alias) != m.Class {
				t.Errorf("%s: %s is no %s", name, m.Alias, m.Class.Name)
			}
		}
		for _, role := range []component.Role{component.Transformer, component.Autoencoder, component.TextEncoder,
			component.Tokenizer, component.Scheduler} {
			if !roles[role] {
				t.Errorf("%s: no component of role %d", name, role)
			}
		}
	}
}

// TestRewriterOfFlux3: its makers' prompts have their own rules, and an edit has its own message.
func TestRewriterOfFlux3(t *testing.T) {
	r := family.RewriterFor("Flux3ModularPipeline")
	for edit, end := range map[bool]string{false: "Output only the caption.", true: "Output only the instruction."} {
		if s := r.System(edit); !strings.HasPrefix(s, "You are the prompt upsampler of") || !strings.HasSuffix(s, "\n\n"+end) {
			t.Errorf("edit %v: %s", edit, s)
		}
	}
	if got := r.Request("100 % red", false); got != "100 % red" {
		t.Error(got)
	}
	if got := r.Request("100 % red", true); !strings.Contains(got, "\nUser request: 100 % red\nOutput the caption.") {
		t.Error(got)
	}
}
