package models

import (
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// A plan is the part of a run that is left to do, given its overrides.
type plan struct {
	// resumeAfter is the last evaluation whose resulting latents are overridden, -1 for none.
	resumeAfter int
	// first is the first evaluation that runs. It is the number of evaluations if none does.
	first     int
	start     bool // the run makes the latents that it begins with
	evaluates bool // some evaluation runs
	predicts  bool // some evaluation needs the transformer
	schedules bool // the scheduler's config decides sigmas or timesteps
	// prompts are the folders of the tokenizers, text encoders and image processors that the
	// prompts need.
	prompts map[string]bool
}

func (r *Run) newPlan() plan {
	p := r.planLatents()
	p.prompts = map[string]bool{}
	for _, prompt := range r.prompts {
		for _, t := range r.family.PromptEncodings(nil) {
			if !p.predicts {
				continue
			}
			ids := !r.isOverridden(prompt.name+"."+t.IDs, -1)
			if !r.isOverridden(prompt.name+"."+t.Embeds, -1) {
				p.prompts[t.Encoder] = true
				p.prompts[t.Tokenizer] = p.prompts[t.Tokenizer] || ids || t.EncodeMasked != nil
				p.prompts[processors] = p.prompts[processors] || t.SeesReferences
			} else if t.NeedsIDs && ids {
				p.prompts[t.Tokenizer] = true
			}
		}
	}
	return p
}

// processors is the folder of a pipeline's image processor.
const processors = "processor"

// planLatents plans the evaluations.
func (r *Run) planLatents() plan {
	s := r.schedule
	n := len(s.Timesteps)
	p := plan{resumeAfter: -1, first: s.Start(r.firstStep()), start: true}
	if r.isOverridden("vae.decode.in", -1) {
		p.first, p.start = n, false
	}
	for i := n - 1; i >= p.first; i-- {
		if s.Resumes(i) && r.isOverridden("latents", i) {
			p.resumeAfter, p.first, p.start = i, i+1, false
			break
		}
	}
	p.evaluates = p.first < n
	p.schedules = p.evaluates && !(r.isOverridden("sigmas", -1) && r.isOverridden("timesteps", -1))
	for i := p.first; i < n; i++ {
		p.predicts = p.predicts || !r.isOverridden("noise_pred", i)
	}
	return p
}

// tokenizes reports whether a prompt goes through the tokenizer of an encoding.
func (r *Run) tokenizes(t *family.PromptEncoding, prompt *prompt) bool {
	return r.plan.prompts[t.Tokenizer] && !r.isOverridden(prompt.name+"."+t.IDs, -1) &&
		(t.NeedsIDs || !r.isOverridden(prompt.name+"."+t.Embeds, -1))
}

// needs reports whether the run uses the component in a folder.
func (p plan) needs(dir string) bool {
	switch dir {
	case component.Autoencoders:
		return true
	case "scheduler":
		return p.schedules
	case component.Transformers:
		return p.predicts
	}
	return p.prompts[dir]
}
