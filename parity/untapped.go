package parity

import (
	"cmp"
	"io/fs"
	"regexp"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/inspect"
)

// untappedRules are those for any model. Those of single classes are in package component.
var untappedRules = []component.Untapped{{
	Names:  regexp.MustCompile(`\.dropout|\.to_out\.1([@#:]|$)`),
	Reason: "dropout, which does nothing",
}, {
	Names:  regexp.MustCompile(`\.rotary_emb|:in\.(\w+_)?position_(embeddings|ids)|^transformer\..*:in\.freqs_cis$`),
	Reason: "positions and their rotary tables, which are no module's tensors here",
}, {
	Names:  regexp.MustCompile(`[.:]in\.(\w*attention_mask|padding_mask|attn_mask|mm_token_type_ids|cu_seqlens)$|\.attention_mask$`),
	Reason: "masks, positions of images and bounds of windows, which are computed where they are used",
}, {
	Names:  regexp.MustCompile(`^text_encoder.*:out\.hidden_states\.\d+$`),
	Reason: "hidden states, which are compared as outputs of layers",
}, {
	Names: regexp.MustCompile(`^transformer(\.t_embedder)?@\d+(#\d+)?:in\.[01]$|` +
		`^transformer@\d+(#\d+)?:in\.((target_)?timestep|guidance)$|` +
		`\.time_((text|guidance)_)?embed@\d+(#\d+)?:in\.[01]$|\.time_proj@\d+(#\d+)?:in\.0$`),
	Reason: "timesteps and guidance scales before their sinusoidal embedding, which the host computes",
}, {
	Names:  regexp.MustCompile(`^text_encoder:out\.pooler_output$`),
	Reason: "compared as prompt.pooled_embeds",
}, {
	Names:  regexp.MustCompile(`^text_encoder\.lm_head(\.|#|:|$)`),
	Reason: "a language model's head, which is not used",
}, {
	Names:  regexp.MustCompile(`:(positions|samples)$`),
	Reason: "parts of another tensor",
}}

// untappedBy returns the reason that the first rule for a name has, or "".
func untappedBy(rules []component.Untapped, name string) string {
	for _, u := range rules {
		if u.Names.MatchString(name) {
			return u.Reason
		}
	}
	return ""
}

// untappedTensors are the reference's tensors that have no counterpart in a model.
type untappedTensors struct {
	rules []component.Untapped // of the classes of its components
	// idle has the modules that are neither loaded nor run: those after the last hidden state
	// that is used.
	idle map[string]bool
	// headed has the text encoders that the reference wraps in a model with a head.
	headed map[string]bool
}

// untappedOfAll returns the tensors without a counterpart for the components of any model.
func untappedOfAll() (u untappedTensors) {
	for _, class := range component.All {
		u.rules = append(u.rules, class.Untapped...)
	}
	return u
}

// untappedTensorsOf returns the tensors without a counterpart for the components of a model folder. Idle
// modules are those whose tensors in the checkpoints are not loaded.
func untappedTensorsOf(fsys fs.FS, components []component.Component) (untappedTensors, error) {
	u := untappedTensors{idle: map[string]bool{}, headed: map[string]bool{}}
	for _, c := range components {
		u.rules = append(u.rules, c.Class.Untapped...)
		u.headed[c.Dir] = c.Class.Headed
	}
	w, err := inspect.OpenWeights(fsys)
	if err != nil {
		return untappedTensors{}, err
	}
	defer w.Close()
	used := map[string]bool{}
	for _, c := range w.Components {
		for _, t := range c.Tensors {
			for module := hooks.Parent(unprefixed(c.Name + "." + t.Name)); module != ""; module = hooks.Parent(module) {
				if t.Unused {
					u.idle[module] = true
				} else {
					used[module] = true
				}
			}
		}
	}
	for module := range used {
		delete(u.idle, module)
	}
	return u, nil
}

// reason returns why a tensor needs no tap, or "".
func (u untappedTensors) reason(name string) string {
	if reason := cmp.Or(untappedBy(untappedRules, name), untappedBy(u.rules, name)); reason != "" {
		return reason
	}
	switch n := hooks.NameOf(name); {
	case u.isIdle(n.Module):
		return "of modules after the last hidden state that is used, which do not run here"
	case u.headed[n.Module]:
		return "of the wrapper of a language model and its head, which only passes tensors on"
	}
	return ""
}

// unprefixed removes "model" from the names in a causal language model, in files and modules.
func unprefixed(module string) string {
	if module == "text_encoder.model" {
		return "text_encoder"
	}
	if rest, ok := strings.CutPrefix(module, "text_encoder.model."); ok {
		return "text_encoder." + rest
	}
	return module
}

// isIdle reports whether a module is idle, or returns the output of a final norm that is idle.
func (u untappedTensors) isIdle(module string) bool {
	module = unprefixed(module)
	for _, norm := range []string{"text_encoder.norm", "text_encoder.language_model.norm"} {
		if u.idle[norm] && strings.HasPrefix(norm, module+".") {
			return true
		}
	}
	for ; module != ""; module = hooks.Parent(module) {
		if u.idle[module] {
			return true
		}
	}
	return false
}
