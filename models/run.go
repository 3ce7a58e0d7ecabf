package models

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// A Run is a request that was checked, with everything that follows from it: the
// schedule, the tokens of its prompts, and which parts of the model it needs. It is
// made once; what can be asked about a run, and the run itself, are its methods.
type Run struct {
	*Pipeline
	Request
	schedule *scheduler.Schedule
	plan     plan
	prompts  []*prompt // the prompt, and the negative one where guidance uses it
	batch    int       // how many pictures are made at once

	// while it generates
	compiled []func()     // which free what is compiled
	kept     []*mlx.Array // of one step for later ones
	pace     *pace
}

// A prompt is one of a run's.
type prompt struct {
	name   string // prompt or negative: the prefix of its taps
	text   string
	called string // in messages
	// tokens are those of each of the family's texts, without ids where they are not
	// needed.
	tokens []family.Tokens
}

// Prepare checks a request and prepares its run, for so many pictures at once. Its
// errors are [errs.ErrRequest]. The numbers must have been filled in.
func (p *Pipeline) Prepare(r Request, batch int) (*Run, error) {
	run, err := p.outline(r)
	if err != nil {
		return nil, err
	}
	run.batch = batch
	return run, run.complete()
}

// Check returns an error for what of a request cannot be done, with a hint.
func (p *Pipeline) Check(r Request) error {
	_, err := p.Prepare(r, 1)
	return err
}

// outline prepares what can be prepared of a run without tokenizers.
func (p *Pipeline) outline(request Request) (*Run, error) {
	if err := p.checkNumbers(request); err != nil {
		return nil, err
	}
	return p.sketch(request)
}

// sketch is outline for a request whose numbers are not checked.
func (p *Pipeline) sketch(request Request) (*Run, error) {
	r := &Run{Pipeline: p, Request: request, batch: 1}
	for _, name := range p.promptNames(request.Guidance) {
		text, called := p.promptText(name, &request)
		r.prompts = append(r.prompts, &prompt{name: name, text: text, called: called})
	}
	var err error
	mu := p.family.Mu(&p.declared.Scheduler, p.tokens(r.Height, r.Width), r.Steps)
	if r.schedule, err = p.declared.Scheduler.Schedule(r.Scheduler, p.family.Sigmas(r.Steps), mu); err != nil {
		return nil, errs.Request(err)
	}
	r.plan = r.newPlan()
	return r, nil
}

// complete tokenizes the prompts of an outline, and checks what depends on that.
func (r *Run) complete() error {
	for _, dir := range sorted(r.without) {
		if r.plan.needs(dir) {
			return errs.Requestf("the model was loaded without its %s, for a run that did not need it (open it again for this one)", dir)
		}
	}
	for _, prompt := range r.prompts {
		for _, t := range r.family.Texts(r.References) {
			tokens, err := r.tokenize(&t, prompt)
			if err != nil {
				return err
			}
			prompt.tokens = append(prompt.tokens, tokens)
			h, w := r.latentSize(r.Height, r.Width)
			if len(tokens.IDs) == 0 {
				continue
			}
			if err := r.family.Fits(h, w, len(tokens.IDs)); err != nil {
				return errs.Request(err)
			}
		}
	}
	return nil
}

// tokenize takes a prompt to the tokens of a text, if they are needed.
func (r *Run) tokenize(t *family.Text, prompt *prompt) (family.Tokens, error) {
	if !r.tokenizes(t, prompt) {
		return family.Tokens{}, nil
	}
	tokens, err := t.Tokens(r.tokenizers[t.Tokenizer], prompt.text, r.limit(t))
	if err != nil {
		return family.Tokens{}, errs.Requestf("%s: %w", prompt.called, err)
	}
	if r.RefuseLongPrompts && t.Limit == 0 {
		if err := r.checkLength(t, prompt.called, tokens.Total-t.Uncounted); err != nil {
			return family.Tokens{}, err
		}
	}
	return tokens, nil
}

// limit is how many tokens of a text there may be.
func (r *Run) limit(t *family.Text) int {
	if t.Limit > 0 {
		return t.Limit
	}
	return r.MaxSequenceLength
}

// checkLength returns an error if a prompt has too many tokens.
func (r *Run) checkLength(t *family.Text, called string, n int) error {
	most := r.limit(t)
	switch {
	case n <= most:
		return nil
	case t.Limit > 0:
		return errs.Requestf("%s has %d tokens, with the model's own around it, and the limit of %s is %d (shorten it)", called, n, t.Encoder, most)
	}
	return errs.Requestf("%s has %d tokens, with the model's own around it, and the limit is %d (shorten it, or raise --max-sequence-length)", called, n, most)
}

// A Cut is a part of a prompt that a text encoder is not shown, because there are
// more tokens than it takes.
type Cut struct {
	Prompt  string // prompt or negative prompt
	Encoder string // the text encoder's folder
	Tokens  int    // how many are lost, with the template's
	Limit   int
	Text    string // what is lost of the prompt
}

// Cuts lists what is cut off the prompts.
func (r *Run) Cuts() (cuts []Cut) {
	for _, prompt := range r.prompts {
		for i, t := range r.family.Texts(r.References) {
			if i >= len(prompt.tokens) || t.Whole {
				continue
			}
			tokens := prompt.tokens[i]
			if lost := tokens.Total - t.Uncounted - r.limit(&t); len(tokens.IDs) > 0 && lost > 0 {
				cuts = append(cuts, Cut{Prompt: prompt.called, Encoder: t.Encoder, Tokens: lost, Limit: r.limit(&t), Text: tokens.Lost})
			}
		}
	}
	return cuts
}

// Tokens is how many tokens the prompt has, with those of the model's template, and
// how many of its end a text encoder with a limit of its own, CLIP, is not shown.
// They are 0 where none are needed, because their encoding is given.
func (r *Run) Tokens() (prompt, cut int) {
	for i, t := range r.family.Texts(r.References) {
		tokens := r.prompts[0].tokens[i]
		if tokens.IDs == nil {
			prompt = 0
			continue
		}
		if t.Limit > 0 {
			cut = max(cut, tokens.Total-len(tokens.IDs))
		}
		prompt = tokens.Total - t.Uncounted // the last text is what the transformer sees
	}
	return prompt, cut
}

// promptNames are the prefixes of the names of a request's prompts.
func (p *Pipeline) promptNames(guidance float64) []string {
	if negative, _ := p.family.Guidance(guidance); negative {
		return []string{"prompt", "negative"}
	}
	return []string{"prompt"}
}

// UsesNegativePrompt reports whether a request's negative prompt counts.
func (p *Pipeline) UsesNegativePrompt(r Request) bool { return len(p.promptNames(r.Guidance)) > 1 }

// promptText is what a request has under the name of one of its prompts, and what
// messages call that.
func (p *Pipeline) promptText(name string, r *Request) (text, called string) {
	if name == "negative" {
		return r.NegativePrompt, "negative prompt"
	}
	if f, ok := p.family.(family.Editor); ok {
		return nameReferences(r.Prompt, f.ReferenceName(), len(r.References)), name
	}
	return r.Prompt, name
}

// reference is $ and a number, which is no amount of money with cents.
var reference = regexp.MustCompile(`\$([0-9]+)([.,][0-9])?`)

// nameReferences puts image 1, or what else a model calls pictures, in the place of
// $1 in a prompt, as far as there are so many.
func nameReferences(prompt, name string, n int) string {
	return reference.ReplaceAllStringFunc(prompt, func(s string) string {
		if i, err := strconv.Atoi(s[1:]); err == nil && i >= 1 && i <= n {
			return fmt.Sprint(name, " ", i)
		}
		return s
	})
}

// A plan is what of a run is left to do, given some of its values.
type plan struct {
	// latents is the last evaluation whose result is given, -1 for none, and first
	// the one after it. Where the latents do not count, first is the number of
	// evaluations.
	latents, first int
	step           bool            // some evaluation is left
	start          bool            // the latents that it begins with are to be made
	predict        bool            // some evaluation needs the transformer
	texts          map[string]bool // folders of the tokenizers, text encoders and image processors that a prompt needs
}

func (r *Run) newPlan() plan {
	p := r.planLatents()
	p.texts = map[string]bool{}
	for _, prompt := range r.prompts {
		for _, t := range r.family.Texts(nil) {
			if p.predict && !r.has(prompt.name+"."+t.Embeds, -1) {
				p.texts[t.Encoder] = true
				p.texts[t.Tokenizer] = p.texts[t.Tokenizer] || t.Masked != nil || !r.has(prompt.name+"."+t.IDs, -1)
				p.texts[processors] = p.texts[processors] || t.Looks
			}
		}
	}
	return p
}

// processors is the folder of a pipeline's image processor.
const processors = "processor"

// planLatents is the plan of the latents.
func (r *Run) planLatents() plan {
	s := r.schedule
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

// tokenizes reports whether a prompt goes through a text's tokenizer.
func (r *Run) tokenizes(t *family.Text, prompt *prompt) bool {
	return r.plan.texts[t.Tokenizer] && !r.has(prompt.name+"."+t.Embeds, -1) && !r.has(prompt.name+"."+t.IDs, -1)
}

// needs reports whether a component, by its folder, is used.
func (p plan) needs(dir string) bool {
	switch dir {
	case component.Autoencoders:
		return true
	case "scheduler":
		return p.step
	case component.Transformers:
		return p.predict
	}
	return p.texts[dir]
}

// packer is the family's, nil where latents have no other form.
func (r *Run) packer() family.Packer {
	p, ok := r.family.(family.Packer)
	if !ok || r.without[component.Transformers] {
		return nil
	}
	return p
}

// steps is how many steps run.
func (r *Run) steps() int {
	return r.Steps - r.schedule.StepOf(r.plan.first+r.schedule.Order()-1)
}

func (r *Run) report(p Progress) {
	if r.Progress != nil {
		r.Progress(p)
	}
}
