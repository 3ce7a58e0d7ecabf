package report

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// The readings of a tensor.
const (
	Free     = "free"     // the run computes everything from the start
	Isolated = "isolated" // each module gets the reference's inputs
	Own      = "own"      // so do the modules inside it; a part of the isolated reading
)

var inside = regexp.MustCompile(`^(transformer|text_encoder(_\d+)?|upscaler)(\.|$)|^vae\.((en|de)coder|quant_conv|post_quant_conv)`)

// IsModule reports whether a name is that of a module of a component, or of its tensor, and not of a
// value of the pipeline, such as latents.
func IsModule(name string) bool { return inside.MatchString(name) }

// stages are listed backwards from pixels; steps come between vae and latents.
var stages = []string{"picture", "vae", "latents", "encode", "text", "tokenizer", "scheduler"}

// A Stage is a part of the pipeline.
type Stage struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Tensors  int    `json:"tensors"`
	Failing  int    `json:"failing"`
	Free     Number `json:"free"`     // the largest relative L2, or error of statistics
	Isolated Number `json:"isolated"` // the largest relative L2 of a module's own error
	Worst    string `json:"worst,omitempty"`
}

// StageOf returns the stage that computes a tensor.
func StageOf(name string) string {
	n := hooks.NameOf(name)
	prefix := func(p string) bool { return strings.HasPrefix(n.Module, p) }
	switch {
	case n.Step >= 0:
		return "step " + strconv.Itoa(n.Step)
	case IsImage(n.Module):
		return "picture"
	case n.Module == "image.in" || n.Module == "latents.image" || n.Module == "latents.masked" || n.Module == "latents.reference" ||
		prefix("vae.encode") || prefix("vae.quant_conv"):
		return "encode"
	case prefix("vae"):
		return "vae"
	case strings.Contains(n.Module, ".input_ids") || strings.HasSuffix(n.Module, "attention_mask"):
		return "tokenizer"
	case prefix("text_") || strings.HasSuffix(n.Module, "embeds") || prefix("prompt.") || prefix("negative.") ||
		prefix("logits") || prefix("vision.") || n.Module == "image.condition":
		return "text"
	case n.Module == "sigmas" || n.Module == "timesteps":
		return "scheduler"
	}
	return "latents"
}

// stageOrder counts backwards from pixels.
func stageOrder(stage string) int {
	word, step, _ := strings.Cut(stage, " ")
	if word == "step" {
		n, _ := strconv.Atoi(step)
		return 1e6 - n
	}
	i := slices.Index(stages, word)
	if i >= slices.Index(stages, "latents") {
		return 2e6 + i
	}
	return i
}

// add counts a tensor.
func (s *Stage) add(t *Tensor) {
	s.Tensors++
	if !t.OK() {
		s.OK = false
		s.Failing++
	}
	s.Free = max(s.Free, t.Free.l2(), t.Stats.largest())
	if own := max(t.Own.l2(), t.Isolated.l2()); own > s.Isolated {
		s.Isolated, s.Worst = own, t.Name
	}
}

// Depth returns how deep a module is below its component. Values of the pipeline have depth 0,
// above all modules.
func Depth(module string) int {
	if !IsModule(module) {
		return 0
	}
	return strings.Count(module, ".")
}

// ImageValue is the last value of a run, which its report shows. If it is pasted into the picture
// that was inpainted, the result is PastedValue.
const ImageValue, PastedValue = "image", "image.pasted"

// IsImage reports whether a name is ImageValue or PastedValue.
func IsImage(name string) bool { return name == ImageValue || name == PastedValue }
