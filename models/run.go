package models

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
)

// A Run is a checked request with everything that follows from it: the scheduler, the tokens of its
// prompts, and the components that it needs. It is made once. Its methods run it and describe it.
type Run struct {
	*Pipeline
	Request
	sampler  scheduler.Scheduler
	schedule *scheduler.Schedule // of sampler
	plan     plan
	prompts  []*prompt // the prompt, and the negative prompt if guidance uses it
	batch    int       // number of images that are generated at once
	// automatic means that the request leaves the split to the pipeline.
	automatic bool
	// cached has the text encoders, by folder, that need not run because the embeddings of all
	// prompts are in the cache on disk.
	cached    map[string]bool
	converted []input // see references

	// during Generate
	compiled                 []func()     // free the compiled functions
	kept                     []*mlx.Array // live until the last step, such as a KV cache
	encodedImage             *mlx.Array   // see imageLatents
	inpainting               *inpainting  // nil without a mask
	skipped, skippedNegative []int        // steps whose predictions used the step cache
	stepCaches               []*stepcache.Cache
	division
	times   *family.TimeTable
	limiter *limiter
	encoded int // outputs of text encoders that were computed
	read    int // outputs of text encoders that came from the cache on disk
}

// A prompt is one of the prompts of a run.
type prompt struct {
	name   string             // prompt or negative: the prefix of its taps
	text   string             // with the names of reference images
	label  string             // in messages
	tokens []family.Tokens    // for each of the family's encodings; without ids if they are not needed
	hooked map[string][]int32 // ids by the names of their taps, as a hook returned them
}

// Prepare checks a request, whose numbers must have been filled in, and prepares a run for a batch
// of images. Its errors are [errs.ErrRequest].
func (p *Pipeline) Prepare(r Request, batch int) (*Run, error) {
	run, err := p.newCheckedRun(r)
	if err != nil {
		return nil, err
	}
	run.batch = batch
	return run, run.tokenizePrompts()
}

// Check returns an error with a hint if a request cannot be run.
func (p *Pipeline) Check(r Request) error {
	_, err := p.Prepare(r, 1)
	return err
}

// newCheckedRun checks a request and makes its run without the tokens of its prompts.
func (p *Pipeline) newCheckedRun(request Request) (*Run, error) {
	if p.closed {
		return nil, ErrClosed
	}
	request = p.withInpaint(request)
	if err := p.checkNumbers(request); err != nil {
		return nil, err
	}
	return p.newRun(request)
}

// newRun is newCheckedRun without the checks.
func (p *Pipeline) newRun(request Request) (*Run, error) {
	r := &Run{Pipeline: p, Request: p.withInpaint(request), batch: 1}
	if r.Layers == 0 {
		r.Layers = p.DefaultLayers()
	}
	r.Conversions.keep(&r.Request)
	var err error
	r.automatic = cmp.Or(r.Split, SplitAuto) == SplitAuto
	if r.Split, _, err = p.SplitOf(&r.Request); err != nil {
		return nil, err
	}
	for _, name := range p.promptNames(&request) {
		text, label := p.promptText(name, &r.Request)
		r.prompts = append(r.prompts, &prompt{name: name, text: text, label: label})
	}
	config := &p.declared.Scheduler
	mu := p.family.Mu(config.DynamicShift(), p.tokens(r.Height, r.Width), r.Steps)
	sigmas := p.family.Sigmas(r.Steps)
	if r.Sigmas != nil {
		sigmas = r.Sigmas.Float32()
		if err := config.TakesSigmas(r.Scheduler); err != nil {
			return nil, errs.Request(err)
		}
	}
	if r.sampler, err = config.New(r.Scheduler, sigmas, mu); err != nil {
		return nil, errs.Request(err)
	}
	r.schedule = r.sampler.Schedule()
	r.plan = r.newPlan()
	return r, nil
}

// tokenizePrompts tokenizes the prompts of a new run, and checks what depends on their tokens.
func (r *Run) tokenizePrompts() error {
	for _, dir := range sorted(r.notLoaded) {
		if r.plan.needs(dir) {
			return errs.Requestf("the model was loaded without its %s, because the runs that it was opened for do not need it "+
				"(open it again)", dir)
		}
	}
	h, w := r.latentsSize()
	for _, prompt := range r.prompts {
		for _, t := range r.family.PromptEncodings(r.References) {
			tokens, err := r.tokenize(&t, prompt)
			if err != nil {
				return err
			}
			prompt.tokens = append(prompt.tokens, tokens)
			if tokens.Count == 0 {
				continue
			}
			if err := r.family.Fits(h, w, tokens.Count); err != nil {
				return errs.Requestf("an image of %dx%d is too large for this model: %w%s", r.Width, r.Height, err, enlargeHint)
			}
		}
	}
	r.findCached()
	return nil
}

// tokenize returns the tokens of a prompt for one of the family's encodings, or no tokens if they
// are not needed. Of embeddings in the cache on disk it returns only their numbers.
func (r *Run) tokenize(t *family.PromptEncoding, prompt *prompt) (family.Tokens, error) {
	if !r.tokenizes(t, prompt) {
		return family.Tokens{}, nil
	}
	tokens, ok := r.tokensOnDisk(t, prompt)
	if !ok {
		var err error
		if tokens, err = r.makeTokens(t, prompt); err != nil {
			return family.Tokens{}, err
		}
	}
	if r.RefuseLongPrompts && t.Limit == 0 {
		if err := r.checkLength(t, prompt.label, tokens.Total-t.PrefixTokens); err != nil {
			return family.Tokens{}, err
		}
	}
	return tokens, nil
}

// makeTokens is tokenize without the cache and the limit.
func (r *Run) makeTokens(t *family.PromptEncoding, prompt *prompt) (tokens family.Tokens, err error) {
	if r.random != nil {
		tokens, err = r.randomTokens(t, prompt)
	} else {
		tokenizer, err := r.tokenizers[t.Tokenizer].load()
		if err != nil {
			return tokens, err
		}
		if tokens, err = t.Tokenize(tokenizer, prompt.text, r.tokenLimit(t)); err != nil {
			return tokens, errs.Requestf("%s: %w", prompt.label, err)
		}
	}
	tokens.Count = len(tokens.IDs)
	return tokens, err
}

// references returns the reference images with their hashes.
func (r *Run) references() []input {
	for _, img := range r.References[len(r.converted):] {
		r.converted = append(r.converted, r.Conversions.convert(r.Autoencoder, img))
	}
	return r.converted
}

// tokenLimit returns the largest number of tokens of an encoding.
func (r *Run) tokenLimit(t *family.PromptEncoding) int {
	if t.Limit > 0 {
		return t.Limit
	}
	return r.MaxSequenceLength
}

// checkLength returns an error if a prompt has too many tokens.
func (r *Run) checkLength(t *family.PromptEncoding, label string, n int) error {
	limit := r.tokenLimit(t)
	switch {
	case n <= limit:
		return nil
	case t.Limit > 0:
		return errs.Requestf("%s has %d tokens, including the model's template, and the limit of %s is %d (shorten it)",
			label, n, t.Encoder, limit)
	}
	return errs.Requestf("%s has %d tokens, including the model's template, and the limit is %d "+
		"(shorten it, or raise the max sequence length)", label, n, limit)
}

// A Cut is the end of a prompt that a text encoder does not see, because there are more tokens than
// its limit.
type Cut struct {
	Prompt  string // prompt or negative prompt
	Encoder string // folder of the text encoder
	Tokens  int    // number of tokens that are lost, including the template's
	Limit   int    // in tokens
	Text    string // part of the prompt that is lost
}

// Cuts lists the parts of the prompts that are cut off.
func (r *Run) Cuts() (cuts []Cut) {
	for _, prompt := range r.prompts {
		for i, t := range r.family.PromptEncodings(r.References) {
			if i >= len(prompt.tokens) || t.NeverCut {
				continue
			}
			tokens, limit := prompt.tokens[i], r.tokenLimit(&t)
			if lost := tokens.Total - t.PrefixTokens - limit; tokens.Count > 0 && lost > 0 {
				cuts = append(cuts, Cut{Prompt: prompt.label, Encoder: t.Encoder, Tokens: lost, Limit: limit, Text: tokens.Lost})
			}
		}
	}
	return cuts
}

// Tokens returns the number of tokens of the prompt, including the model's template, and the number
// of tokens at its end that a text encoder with a limit of its own, such as CLIP, does not see.
// Both are 0 if the prompt need not be tokenized, because its embeddings are overridden.
func (r *Run) Tokens() (prompt, cut int) {
	for i, t := range r.family.PromptEncodings(r.References) {
		tokens := r.prompts[0].tokens[i]
		if tokens.Count == 0 {
			prompt = 0
			continue
		}
		if t.Limit > 0 {
			cut = max(cut, tokens.Total-tokens.Count)
		}
		prompt = tokens.Total - t.PrefixTokens // the last encoding is the transformer's sequence
	}
	return prompt, cut
}

// promptNames returns the prefixes of the taps of a request's prompts.
func (p *Pipeline) promptNames(r *Request) []string {
	if negative, _ := p.family.Guidance(r.guidance()); negative {
		return []string{"prompt", "negative"}
	}
	return []string{"prompt"}
}

// UsesNegativePrompt reports whether a request uses its negative prompt.
func (p *Pipeline) UsesNegativePrompt(r Request) bool { return len(p.promptNames(&r)) > 1 }

// promptText returns one of the prompts of a request, by the prefix of its taps, and its name in
// messages.
func (p *Pipeline) promptText(name string, r *Request) (text, label string) {
	if name == "negative" {
		return r.NegativePrompt, "negative prompt"
	}
	if f, ok := p.family.(family.Editor); ok {
		return nameReferences(r.Prompt, f.ReferenceName(), len(r.References)), name
	}
	return r.Prompt, name
}

// imageNumber matches $ and a number. The second group tells amounts of money with cents.
var imageNumber = regexp.MustCompile(`\$([0-9]+)([.,][0-9])?`)

// nameReferences replaces $1 in a prompt by image 1, or another name that the model has for its
// reference images, and likewise up to $n.
func nameReferences(prompt, name string, n int) string {
	return imageNumber.ReplaceAllStringFunc(prompt, func(s string) string {
		if i, err := strconv.Atoi(s[1:]); err == nil && i >= 1 && i <= n {
			return fmt.Sprint(name, " ", i)
		}
		return s
	})
}

// packer returns the family's NoisePacker, or nil if its transformer takes latents as they are.
func (r *Run) packer() family.NoisePacker {
	p, ok := r.family.(family.NoisePacker)
	if !ok || r.notLoaded[component.Transformers] {
		return nil
	}
	return p
}

// steps returns the number of steps that run.
func (r *Run) steps() int {
	return r.Steps - r.schedule.StepOf(r.plan.first)
}

func (r *Run) report(p Progress) {
	if r.Progress != nil {
		r.Progress(p)
	}
}
