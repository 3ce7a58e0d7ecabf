package parity

import (
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/parity/report"
)

// A standIn replays a model of which components are not there yet: the reference's values stand for those that
// they would compute. It implements [models.Overrides].
type standIn struct {
	ref    *Run
	absent []string          // folders
	values map[string]string // see [models.Pipeline.AbsentValues]
	dtype  mlx.Dtype
}

// lacks reports whether a component is not there.
func (p *standIn) lacks(folder string) bool {
	for _, dir := range p.absent {
		if strings.HasPrefix(dir, folder) {
			return true
		}
	}
	return false
}

// Has implements [models.Overrides].
func (p *standIn) Has(name string, step int) bool {
	if p.values[name] == "" || name == "vae.decode.in" && p.ref.has("latents@") {
		return false
	}
	return p.ref.Array(hooks.Name{Module: name, Step: step}.String()) != nil
}

// Array implements [models.Overrides].
func (p *standIn) Array(name string, step int) (*mlx.Array, error) {
	x := p.ref.Array(hooks.Name{Module: name, Step: step}.String())
	switch {
	case strings.Contains(name, "input_ids"):
		return x.AsType(mlx.Int32).Reshape(1, -1), nil
	case strings.HasSuffix(name, "embeds"), name == "vae.decode.in":
		return x.AsType(p.dtype), nil
	}
	return x.AsType(mlx.Float32), nil
}

// reason returns why a tensor of the reference is not compared, "" for one that should be.
func (p *standIn) reason(name string) string {
	const reason = "of components that are not there, or computed from their values alone"
	n, err := hooks.ParseName(name)
	if err != nil || len(p.absent) == 0 {
		return ""
	}
	folder, _, inside := strings.Cut(n.Module, ".")
	switch {
	case report.IsModule(n.Module):
		if p.lacks(folder) {
			return reason
		}
	case inside && (folder == "prompt" || folder == "negative" || folder == "vision"):
		if p.lacks("text_encoder") || p.lacks("tokenizer") || p.lacks(component.Transformers) {
			return reason
		}
	case p.Has(n.Module, n.Step):
		return reason
	case p.lacks(component.Transformers) && !strings.HasPrefix(n.Module, "vae.decode") &&
		n.Module != report.ImageValue && n.Module != report.PastedValue:
		return reason
	}
	return ""
}
