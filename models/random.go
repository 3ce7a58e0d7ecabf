package models

import (
	"hash/fnv"
	"image"
	"math/rand/v2"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
)

// Random describes weights and prompts that are drawn at random, to measure a model that is not on
// this machine.
type Random struct {
	Dtype        checkpoint.Dtype // of the weights before quantization
	PromptTokens int              // number of tokens of a prompt, including the model's template
}

// Random ids are at least randomIDs, except for padding. Vocabularies begin with special tokens.
const randomPad, randomIDs, randomIDsEnd = 0, 3, 256

// randomTokens returns random tokens of an encoding, the same ones for the same prompt.
func (r *Run) randomTokens(t *family.PromptEncoding, prompt *prompt) (family.Tokens, error) {
	n, limit := r.random.PromptTokens, r.tokenLimit(t)
	switch {
	case t.Limit > 0:
		n = min(n, limit) // as long prompts are truncated for this text encoder
	case n > limit && !t.NeverCut:
		return family.Tokens{}, errs.Requestf("a prompt of %d tokens: the model takes at most %d", n, limit)
	}
	text := fnv.New64a()
	text.Write([]byte(prompt.text))
	random := rand.New(rand.NewPCG(text.Sum64(), 0))
	end := min(randomIDsEnd, r.vocabulary(t.Encoder))
	ids := make([]int32, t.PrefixTokens+n)
	for i := range ids {
		ids[i] = int32(randomIDs + random.IntN(end-randomIDs))
	}
	tokens := family.Tokens{IDs: ids, Total: len(ids)}
	if t.Padded && len(ids) < limit {
		tokens.IDs = append(ids, slices.Repeat([]int32{randomPad}, limit-len(ids))...)
	}
	if t.Images != nil {
		var err error
		if tokens.IDs, err = t.Images(ids); err != nil {
			return family.Tokens{}, errs.Request(err)
		}
	}
	return tokens, nil
}

// vocabulary returns the number of tokens of a text encoder, the rows of its largest embedding.
func (r *Run) vocabulary(encoder string) int {
	rows := randomIDs + 1
	for _, c := range r.Components() {
		if c.Dir != encoder {
			continue
		}
		for _, p := range nn.Parameters(c.Model) {
			if p.Kind() == nn.EmbeddingWeight {
				rows = max(rows, p.Stored()[0])
			}
		}
	}
	return rows
}

// ImageTokens returns the number of tokens of the image and the reference images in the
// transformer's sequence.
func (r *Run) ImageTokens() int { return r.latentTokens() + r.referenceTokens() }

// KeepsKV reports whether a run of the request keeps keys and values of the prompt or of reference
// images in a KV cache over its steps.
func (p *Pipeline) KeepsKV(r Request) bool {
	references := len(r.References)
	if r.Inpaint != nil {
		references++ // the image itself
	}
	c, ok := p.family.(family.KVCached)
	return ok && c.CacheSize(references, 1) > 0
}

// StepFLOPs returns the number of floating-point operations of a step for a prompt of so many
// tokens in the transformer's sequence, and reports whether it is known. It is not known with a KV
// cache of reference images, where the first step does more than the others.
func (r *Run) StepFLOPs(text int) (flops float64, ok bool) {
	references := r.referenceTokens()
	if c, ok := r.family.(family.KVCached); ok && references > 0 && c.CacheSize(references, 0) > 0 {
		return 0, false
	}
	t := r.declared.Transformer()
	if t.Class.FLOPs == nil {
		return 0, false
	}
	return float64(len(r.prompts)) * t.Class.FLOPs(t.Model, r.latentTokens(), references, text), true
}

// DecodeFLOPs returns the number of floating-point operations of decoding the image, or its layers.
func (r *Run) DecodeFLOPs() float64 {
	shape := r.vae.Unscaled(r.latentSize(r.Height, r.Width))
	return float64(max(1, r.Layers)) * component.DecodeFLOPs(r.component.Model, shape[1], shape[2])
}

// LeastReferences returns the smallest number of reference images that the model takes.
func (p *Pipeline) LeastReferences() int {
	if e, ok := p.family.(family.Editor); ok && e.CheckReferences(0) != nil {
		return 1
	}
	return 0
}

// LeastInpaint returns an image with a white left half as its mask, for a model that generates
// nothing without a mask, and nil for others.
func (p *Pipeline) LeastInpaint(img image.Image) *inpaint.Input {
	if !p.Fills() {
		return nil
	}
	return HalfInpaint(img)
}

// HalfInpaint returns an image with a white left half as its mask.
func HalfInpaint(img image.Image) *inpaint.Input {
	opaque := picture.Opaque(img)
	mask := image.NewGray(opaque.Rect)
	for i := range mask.Pix {
		if i%mask.Stride < (mask.Stride+1)/2 {
			mask.Pix[i] = 255
		}
	}
	return &inpaint.Input{Image: opaque, Mask: mask}
}
