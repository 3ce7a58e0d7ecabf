package models

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/scheduler"
)

// Given are values of a pipeline that are known before a run. They take the
// place of its own, and what only leads to those is neither run nor loaded. The
// names are those of taps: prompt.input_ids, prompt.embeds, negative.*,
// latents.init, latents.start, latents.image, noise_pred, latents and
// vae.decode.in. Others have no effect.
type Given interface {
	// Has says whether a value is given, at an evaluation of the model for
	// noise_pred and latents, and at -1 for the others.
	Has(name string, step int) bool
	// Array is the value, with the shape and dtype of the tap. It is called on
	// the MLX thread.
	Array(name string, step int) (*mlx.Array, error)
}

// has says whether a value is given.
func (r *Request) has(name string, step int) bool { return r.Given != nil && r.Given.Has(name, step) }

// given is the value that is given under a name, which must be of the dtype
// and shape. A -1 in the shape stands for any size.
func (r *Request) given(name string, step int, dtype mlx.Dtype, shape ...int) (*mlx.Array, error) {
	x, err := r.Given.Array(name, step)
	if err != nil {
		return nil, err
	}
	full := hooks.Name{Module: name, Step: step}
	if x.Dtype() != dtype {
		return nil, requestErrorf("%s is given as %v, expected %v (it is not cast unless that is asked for)", full, x.Dtype(), dtype)
	}
	got := x.Shape()
	if !slices.EqualFunc(got, shape, func(g, want int) bool { return g == want || want < 0 && g > 0 }) {
		return nil, requestErrorf("%s is given with the shape %v, expected %v (-1 is any size)", full, got, shape)
	}
	return x, nil
}

// A plan says what of a run is left to do, given some of its values.
type plan struct {
	// latents is the last evaluation whose result is given, -1 for none, and
	// first the one after it. Where the latents do not count, first is the
	// number of evaluations.
	latents, first int
	step           bool            // some evaluation is left,
	start          bool            // whose latents are to be made
	predict        bool            // some evaluation needs the transformer
	texts          map[string]bool // folders of the tokenizers, text encoders and image processors that a prompt needs
}

func (p *Pipeline) plan(r *Request, s *scheduler.Schedule) plan {
	plan := r.plan(s)
	plan.texts = map[string]bool{}
	for _, what := range p.prompts(r) {
		for _, t := range p.family.texts(nil) {
			if plan.predict && !r.has(what+"."+t.embeds, -1) {
				plan.texts[t.encoder] = true
				plan.texts[t.tokenizer] = plan.texts[t.tokenizer] || t.masked != nil || !r.has(what+"."+t.ids, -1)
				plan.texts["processor"] = plan.texts["processor"] || t.looks
			}
		}
	}
	return plan
}

// plan is that of the latents.
func (r *Request) plan(s *scheduler.Schedule) plan {
	n := len(s.Timesteps)
	p := plan{latents: -1, first: s.Start(r.start()), start: true}
	if r.has("vae.decode.in", -1) {
		p.first, p.start = n, false
	}
	for i := n - 1; i >= p.first; i-- {
		// within a step of several evaluations the solver's state is not known
		if s.Ends(i) && r.has("latents", i) {
			p.latents, p.first, p.start = i, i+1, false
			break
		}
	}
	p.step = p.first < n
	for i := p.first; i < n; i++ {
		p.predict = p.predict || !r.has("noise_pred", i)
	}
	return p
}

// tokenizes says whether a prompt goes through a text's tokenizer.
func (p plan) tokenizes(t *text, what string, r *Request) bool {
	return p.texts[t.tokenizer] && !r.has(what+"."+t.embeds, -1) && !r.has(what+"."+t.ids, -1)
}

// needs says whether a component, by its folder, is used.
func (p plan) needs(dir string) bool {
	switch {
	case dir == "vae":
		return true
	case dir == "scheduler":
		return p.step
	case strings.HasPrefix(dir, "transformer"):
		return p.predict
	}
	return p.texts[dir]
}

// schedule is that of a request.
func (p *Pipeline) schedule(r *Request) (*scheduler.Schedule, error) {
	h, w := r.Height/p.Multiple(), r.Width/p.Multiple()
	s, err := p.scheduler.Schedule(r.Scheduler, p.family.sigmas(r.Steps), p.family.mu(&p.scheduler, h*w, r.Steps))
	if err != nil {
		return nil, requestError{err}
	}
	return s, nil
}

// checkLoaded refuses a run that needs what was left out when the model was
// loaded for another one.
func (p *Pipeline) checkLoaded(plan plan) error {
	for _, dir := range slices.Sorted(maps.Keys(p.without)) {
		if plan.needs(dir) {
			return requestErrorf("the model was loaded without its %s, for a run that did not need it (open it again for this one)", dir)
		}
	}
	return nil
}

// absentDirs are the components of which files are missing.
func absentDirs(missing []string) map[string]bool {
	absent := map[string]bool{}
	for _, name := range missing {
		dir, _ := path.Split(name)
		absent[strings.TrimSuffix(dir, "/")] = true
	}
	return absent
}
