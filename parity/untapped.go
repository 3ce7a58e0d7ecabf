package parity

import (
	"io/fs"
	"regexp"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/inspect"
)

// Untapped are tensors of the reference that have no counterpart here, and why.
type Untapped struct {
	Reason string   `json:"reason"`
	Names  []string `json:"names"`
}

// untapped are the names of such tensors, whatever the model.
var untapped = []struct {
	names  *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`\.dropout|\.to_out\.1([@#:]|$)`), "dropout, which does nothing"},
	{regexp.MustCompile(`\.rotary_emb|:in\.position_(embeddings|ids)|^transformer\..*:in\.freqs_cis$`), "positions and their rotary tables, which are no tensors of a module here"},
	{regexp.MustCompile(`[.:]in\.(attention_mask|attn_mask|mm_token_type_ids|cu_seqlens)$|\.attention_mask$`),
		"masks, places of pictures and bounds of windows, which are computed where they are used"},
	{regexp.MustCompile(`^text_encoder.*:out\.hidden_states\.\d+$`), "hidden states, which are compared as what layers return"},
	{regexp.MustCompile(`^transformer\.(layers|(noise|context)_refiner)\.\d+@\d+(#\d+)?:in\.[12]$`), "mask and rotary table of Z-Image's blocks"},
	{regexp.MustCompile(`^transformer(\.t_embedder)?@\d+(#\d+)?:in\.[01]$|^transformer@\d+(#\d+)?:in\.(timestep|guidance)$|` +
		`\.time_(text|guidance)_embed@\d+(#\d+)?:in\.[01]$|\.time_proj@\d+(#\d+)?:in\.0$`), "times and scales before they are sinusoids, which the host computes"},
	{regexp.MustCompile(`^text_encoder_2\.encoder\.block\.\d+(\.layer\.0(\.SelfAttention)?)?(#\d+)?:out\.1$`), "T5's table of biases, which its blocks only pass on: see in.position_bias"},
	{regexp.MustCompile(`^text_encoder:out\.pooler_output$`), "what is compared as prompt.pooled_embeds"},
	{regexp.MustCompile(`^text_encoder\.lm_head(\.|#|:|$)`), "a language model's head, whose words nobody reads"},
	{regexp.MustCompile(`:(positions|samples)$`), "parts of another tensor"},
}

func untappedAnywhere(name string) string {
	for _, u := range untapped {
		if u.names.MatchString(name) {
			return u.reason
		}
	}
	return ""
}

// untapped says why a tensor needs no tap, or "".
func (r *replay) untapped(name string) string {
	if reason := untappedAnywhere(name); reason != "" {
		return reason
	}
	switch n, err := hooks.ParseName(name); {
	case err != nil:
	case r.idle.has(n):
		return "of modules behind what is used of a text encoder, which do not run here"
	case r.idle.headed && n.Module == "text_encoder":
		return "what is around a language model and its head, and passes on what they get and return"
	}
	return ""
}

// idle are modules of the model whose weights nothing here needs, and which so
// are not run: those behind the last hidden state that is used.
type idle struct {
	modules map[string]bool
	headed  bool // the text encoder's model is inside one that has a head too
}

// idleModules finds them by what of the checkpoints is not loaded.
func idleModules(fsys fs.FS) (idle, error) {
	w, err := inspect.OpenWeights(fsys)
	if err != nil {
		return idle{}, err
	}
	defer w.Close()
	unused := map[string]bool{}
	used := map[string]bool{}
	for _, c := range w.Components {
		for _, t := range c.Tensors {
			for module := parentOf(unprefixed(c.Name + "." + t.Name)); module != ""; module = parentOf(module) {
				if t.Unused {
					unused[module] = true
				} else {
					used[module] = true
				}
			}
		}
	}
	for module := range used {
		delete(unused, module)
	}
	return idle{unused, strings.HasPrefix(w.Class, "QwenImage")}, nil
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

// has says whether a tensor is of such a module, or of the whole encoder, which
// returns what they make.
func (i idle) has(n hooks.Name) bool {
	module := unprefixed(n.Module)
	if module == "text_encoder" && i.modules["text_encoder.norm"] {
		return true
	}
	for ; module != ""; module = parentOf(module) {
		if i.modules[module] {
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
