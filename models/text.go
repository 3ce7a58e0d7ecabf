package models

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A text is a way that a prompt takes to the transformer: through a tokenizer
// and an encoder, which are named by their folders.
type text struct {
	tokenizer, encoder string
	// What they make is a tap under the prompt's name: prompt.input_ids and
	// prompt.embeds.
	ids, embeds string
	shape       []int // of the embeds in diffusers; -1 is any size
	// limit is how many ids there may be, 0 for as many as a request says, beside
	// those that the model's template has and that do not count.
	limit     int
	uncounted int
	cuts      bool // a prompt of more is cut, and not an error
	// tokens are the ids of a prompt, with all that the model wants around them,
	// and how many there would be without a limit.
	tokens func(t *tokenizer.Tokenizer, prompt string, limit int) (ids []int32, n int, err error)
	encode func(ids []int32) *mlx.Array
	// masked is encode instead where padding is masked and must be told, and so
	// the tokenizer is needed even with ids that are given.
	masked func(ids []int32, valid int) *mlx.Array
	// looks says that the encoder is shown the reference pictures too.
	looks bool
}

// paddedTokens are those of a tokenizer with its own special tokens, padded to
// the limit.
func paddedTokens(t *tokenizer.Tokenizer, prompt string, limit int) ([]int32, int, error) {
	padded, err := t.EncodePadded(prompt, limit)
	if err != nil || !padded.Truncated {
		return padded.IDs, padded.Tokens, err
	}
	all, err := t.EncodeSpecial(prompt)
	return padded.IDs, len(all), err
}

// limitOf is how many ids there may be.
func (t *text) limitOf(r *Request) int {
	if t.limit > 0 {
		return t.limit
	}
	return r.MaxSequenceLength
}

// check says whether there are too many ids.
func (t *text) check(name string, n int, r *Request) error {
	most := t.limitOf(r)
	switch {
	case n <= most:
		return nil
	case t.limit > 0:
		return requestErrorf("%s has %d tokens, with the model's own around it, and the limit of %s is %d (shorten it)", name, n, t.encoder, most)
	}
	return requestErrorf("%s has %d tokens, with the model's own around it, and the limit is %d (shorten it, or raise --max-sequence-length)", name, n, most)
}

// prompts are the prefixes of the names of a request's prompts.
func (p *Pipeline) prompts(r *Request) []string {
	if negative, _ := p.family.guidance(r.Guidance); negative {
		return []string{"prompt", "negative"}
	}
	return []string{"prompt"}
}

// UsesNegativePrompt says whether a request's negative prompt counts.
func (p *Pipeline) UsesNegativePrompt(r Request) bool { return len(p.prompts(&r)) > 1 }

// prompt is what a request has under the name of one of its prompts, and what
// messages call that.
func (p *Pipeline) prompt(what string, r *Request) (prompt, name string) {
	if what == "negative" {
		return r.NegativePrompt, "negative prompt"
	}
	if f, ok := p.family.(editor); ok {
		return nameReferences(r.Prompt, f.referenceName(), len(r.References)), what
	}
	return r.Prompt, what
}

// reference is $ and a number, which is no amount of money with cents.
var reference = regexp.MustCompile(`\$([0-9]+)([.,][0-9])?`)

// nameReferences says image 1, or what else a model calls pictures, for $1 in a
// prompt, as far as there are so many.
func nameReferences(prompt, name string, n int) string {
	return reference.ReplaceAllStringFunc(prompt, func(s string) string {
		if i, err := strconv.Atoi(s[1:]); err == nil && i >= 1 && i <= n {
			return fmt.Sprint(name, " ", i)
		}
		return s
	})
}

// tokenize takes a prompt to as many tokens as the request allows at most.
func (p *Pipeline) tokenize(t *text, what string, r *Request) ([]int32, error) {
	prompt, name := p.prompt(what, r)
	ids, n, err := t.tokens(p.tokenizers[t.tokenizer], prompt, t.limitOf(r))
	if err != nil {
		return nil, requestErrorf("%s: %w", name, err)
	}
	if t.cuts {
		return ids, nil
	}
	return ids, t.check(name, n, r)
}

// Tokens is how many tokens a request's prompt has, with those of the model's
// template, and how many of its end a text encoder that cuts, CLIP, is not shown.
// They are 0 where none are needed, because their encoding is given. The request
// must have been checked.
func (p *Pipeline) Tokens(r Request) (prompt, cut int, err error) {
	schedule, err := p.schedule(&r)
	if err != nil {
		return 0, 0, err
	}
	const what = "prompt"
	text, _ := p.prompt(what, &r)
	plan := p.plan(&r, schedule)
	for _, t := range p.family.texts(r.References) {
		if !plan.tokenizes(&t, what, &r) {
			prompt = 0
			continue
		}
		ids, n, err := t.tokens(p.tokenizers[t.tokenizer], text, t.limitOf(&r))
		if err != nil {
			return 0, 0, err
		}
		if t.cuts {
			cut = max(cut, n-len(ids))
		}
		prompt = n // the last text is what the transformer sees
	}
	return prompt, cut, nil
}

// An encoding is a prompt and what each text makes of it, and of the pictures
// that one looks at.
type encoding struct {
	prompt   string
	limit    int
	pictures []pictureHash
	embeds   []*mlx.Array
}

// encode takes a prompt to what the transformer receives. Those that were used
// last are kept, for runs with other seeds.
func (p *Pipeline) encode(what string, r *Request, pictures []shown) ([]*mlx.Array, error) {
	prompt, _ := p.prompt(what, r)
	texts := p.family.texts(images(pictures))
	var hashes []pictureHash
	if slices.ContainsFunc(texts, func(t text) bool { return t.looks }) {
		for _, s := range pictures {
			hashes = append(hashes, s.hash)
		}
	}
	looked := p.points.Active() || r.Given != nil
	kept := func(e encoding) bool {
		return e.prompt == prompt && e.limit == r.MaxSequenceLength && slices.Equal(e.pictures, hashes)
	}
	if !looked {
		if e, ok := p.encodings.find(kept); ok {
			return e.embeds, nil
		}
	}
	var all []*mlx.Array
	for _, t := range texts {
		embeds, err := p.encodeText(&t, what, r)
		if err != nil {
			return nil, err
		}
		all = append(all, embeds)
	}
	if !looked {
		const most = 2 // prompt and negative prompt
		mlx.Keep(all...)
		p.encodings.add(encoding{prompt, r.MaxSequenceLength, hashes, all}, most)
	}
	return all, nil
}

// encodeText is encode for one of the texts.
func (p *Pipeline) encodeText(t *text, what string, r *Request) (*mlx.Array, error) {
	embedsName, idsName := what+"."+t.embeds, what+"."+t.ids
	if r.has(embedsName, -1) {
		x, err := r.given(embedsName, -1, p.dtype, t.shape...)
		if err != nil {
			return nil, err
		}
		return p.points.Value(embedsName, x), nil
	}
	var ids []int32
	var err error
	if r.has(idsName, -1) {
		var x *mlx.Array
		if x, err = r.given(idsName, -1, mlx.Int32, 1, -1); err == nil {
			ids = x.Int32s()
			_, name := p.prompt(what, r)
			err = t.check(name, len(ids)-t.uncounted, r)
		}
	} else {
		ids, err = p.tokenize(t, what, r)
	}
	if err != nil {
		return nil, err
	}
	if p.points.Active() {
		ids = p.points.Value(idsName, mlx.FromInt32(ids, 1, len(ids))).Int32s()
	}
	if err := p.ensure(t.encoder, r.Progress); err != nil {
		return nil, err
	}
	embeds := mlx.Scope(func() *mlx.Array {
		if t.masked == nil {
			return p.points.Value(embedsName, t.encode(ids))
		}
		valid := len(ids)
		if pad, ok := p.tokenizers[t.tokenizer].PadID(); ok {
			for valid > 0 && ids[valid-1] == pad {
				valid--
			}
		}
		return p.points.Value(embedsName, t.masked(ids, valid))
	})
	mlx.Eval(embeds)
	mlx.StopPoint()
	return embeds, nil
}

// loadTokenizers reads those that are needed.
func (p *Pipeline) loadTokenizers(l *loader, needs func(dir string) bool) error {
	p.tokenizers = map[string]*tokenizer.Tokenizer{}
	for _, t := range p.family.texts(nil) {
		if !needs(t.tokenizer) {
			p.without[t.tokenizer] = true
			continue
		}
		tokenizer, err := tokenizer.Load(l.fsys, t.tokenizer)
		if err != nil {
			return err
		}
		p.tokenizers[t.tokenizer] = tokenizer
	}
	return nil
}
