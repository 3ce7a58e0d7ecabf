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

// untapped are such tensors of any model. Those of single classes are in package
// component.
var untapped = []component.Untapped{{
	Names:  regexp.MustCompile(`\.dropout|\.to_out\.1([@#:]|$)`),
	Reason: "dropout, which does nothing",
}, {
	Names:  regexp.MustCompile(`\.rotary_emb|:in\.position_(embeddings|ids)|^transformer\..*:in\.freqs_cis$`),
	Reason: "positions and their rotary tables, which are no tensors of a module here",
}, {
	Names:  regexp.MustCompile(`[.:]in\.(attention_mask|attn_mask|mm_token_type_ids|cu_seqlens)$|\.attention_mask$`),
	Reason: "masks, places of pictures and bounds of windows, which are computed where they are used",
}, {
	Names:  regexp.MustCompile(`^text_encoder.*:out\.hidden_states\.\d+$`),
	Reason: "hidden states, which are compared as what layers return",
}, {
	Names: regexp.MustCompile(`^transformer(\.t_embedder)?@\d+(#\d+)?:in\.[01]$|^transformer@\d+(#\d+)?:in\.(timestep|guidance)$|` +
		`\.time_(text|guidance)_embed@\d+(#\d+)?:in\.[01]$|\.time_proj@\d+(#\d+)?:in\.0$`),
	Reason: "times and scales before they are sinusoids, which the host computes",
}, {
	Names:  regexp.MustCompile(`^text_encoder:out\.pooler_output$`),
	Reason: "what is compared as prompt.pooled_embeds",
}, {
	Names:  regexp.MustCompile(`^text_encoder\.lm_head(\.|#|:|$)`),
	Reason: "a language model's head, whose words nobody reads",
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

// untappedAnywhere returns why a tensor of a model that is not known needs no tap,
// or "".
func untappedAnywhere(name string) string {
	reason := untappedBy(untapped, name)
	for _, class := range component.All {
		reason = cmp.Or(reason, untappedBy(class.Untapped, name))
	}
	return reason
}

// absent tells which of the reference's tensors have no counterpart in a model.
type absent struct {
	rules []component.Untapped // of the classes of its components
	// idle are modules whose weights nothing here needs, and which so are not run:
	// those behind the last hidden state that is used.
	idle map[string]bool
	// headed are text encoders whose model is inside one that has a head too.
	headed map[string]bool
}

// absentFrom finds out what has no counterpart in a model folder with some
// components. Its idle modules are told by what of the checkpoints is not loaded.
func absentFrom(fsys fs.FS, components []component.Component) (absent, error) {
	a := absent{idle: map[string]bool{}, headed: map[string]bool{}}
	for _, c := range components {
		a.rules = append(a.rules, c.Class.Untapped...)
		a.headed[c.Dir] = c.Class.Headed
	}
	w, err := inspect.OpenWeights(fsys)
	if err != nil {
		return absent{}, err
	}
	defer w.Close()
	used := map[string]bool{}
	for _, c := range w.Components {
		for _, t := range c.Tensors {
			for module := parentOf(unprefixed(c.Name + "." + t.Name)); module != ""; module = parentOf(module) {
				if t.Unused {
					a.idle[module] = true
				} else {
					used[module] = true
				}
			}
		}
	}
	for module := range used {
		delete(a.idle, module)
	}
	return a, nil
}

// untapped returns why a tensor needs no tap, or "".
func (a absent) untapped(name string) string {
	if reason := cmp.Or(untappedBy(untapped, name), untappedBy(a.rules, name)); reason != "" {
		return reason
	}
	switch n, err := hooks.ParseName(name); {
	case err != nil:
	case a.isIdle(n.Module):
		return "of modules behind what is used of a text encoder, which do not run here"
	case a.headed[n.Module]:
		return "what is around a language model and its head, and passes on what they get and return"
	}
	return ""
}

// unprefixed takes out what a causal language model puts before the names of
// the model in it, in files as in modules.
func unprefixed(module string) string {
	if module == "text_encoder.model" {
		return "text_encoder"
	}
	if rest, ok := strings.CutPrefix(module, "text_encoder.model."); ok {
		return "text_encoder." + rest
	}
	return module
}

// isIdle reports whether a module is one of those, or the whole encoder, which
// returns what they make.
func (a absent) isIdle(module string) bool {
	module = unprefixed(module)
	if module == "text_encoder" && a.idle["text_encoder.norm"] {
		return true
	}
	for ; module != ""; module = parentOf(module) {
		if a.idle[module] {
			return true
		}
	}
	return false
}

// leaveOut notes an untapped tensor.
func (r *Report) leaveOut(name, reason string) {
	for i := range r.Untapped {
		if u := &r.Untapped[i]; u.Reason == reason {
			u.Names = append(u.Names, name)
			return
		}
	}
	r.Untapped = append(r.Untapped, Untapped{reason, []string{name}})
}
