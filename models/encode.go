package models

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// encodePrompt takes a prompt to what the transformer receives. Those that were used
// last are kept, for runs with other seeds.
func (r *Run) encodePrompt(prompt *prompt, pictures []shown) ([]*mlx.Array, error) {
	texts := r.family.Texts(images(pictures))
	var hashes []pictureHash
	if slices.ContainsFunc(texts, func(t family.Text) bool { return t.Looks }) {
		for _, s := range pictures {
			hashes = append(hashes, s.hash)
		}
	}
	looked := r.points.Active() || r.Given != nil
	kept := func(e encoding) bool {
		return e.prompt == prompt.text && e.limit == r.MaxSequenceLength && slices.Equal(e.pictures, hashes)
	}
	if !looked {
		if e, ok := r.encodings.find(kept); ok {
			return e.embeds, nil
		}
	}
	var all []*mlx.Array
	for i, t := range texts {
		embeds, err := r.encodeText(&t, prompt, prompt.tokens[i])
		if err != nil {
			return nil, err
		}
		all = append(all, embeds)
	}
	if !looked {
		const most = 2 // prompt and negative prompt
		mlx.Keep(all...)
		r.encodings.add(encoding{prompt.text, r.MaxSequenceLength, hashes, all}, most)
	}
	return all, nil
}

// encodeText is encodePrompt for one of the texts.
func (r *Run) encodeText(t *family.Text, prompt *prompt, tokens family.Tokens) (*mlx.Array, error) {
	embedsName := prompt.name + "." + t.Embeds
	if r.has(embedsName, -1) {
		x, err := givenValue(r.Given, embedsName, -1, r.dtype, t.Shape...)
		if err != nil {
			return nil, err
		}
		return r.points.Value(embedsName, x), nil
	}
	ids, err := r.promptIDs(t, prompt, tokens)
	if err != nil {
		return nil, err
	}
	if err := r.ensure(t.Encoder); err != nil {
		return nil, err
	}
	embeds := mlx.Scope(func() *mlx.Array {
		x := r.runEncoder(t, ids)
		if most := r.limit(t); t.CutsRows && x.Dim(0) > most {
			x = x.Slice(0, 0, most)
		}
		return r.points.Value(embedsName, x)
	})
	mlx.Eval(embeds)
	mlx.StopPoint()
	return embeds, nil
}

// promptIDs are the ids that a text encoder gets: those of the prompt, or that are
// given.
func (r *Run) promptIDs(t *family.Text, prompt *prompt, tokens family.Tokens) ([]int32, error) {
	ids, name := tokens.IDs, prompt.name+"."+t.IDs
	if r.has(name, -1) {
		x, err := givenValue(r.Given, name, -1, mlx.Int32, 1, -1)
		if err != nil {
			return nil, err
		}
		ids = x.Int32s()
		if !t.CutsRows && !t.Whole {
			if err := r.checkLength(t, prompt.called, len(ids)-t.Uncounted); err != nil {
				return nil, err
			}
		}
	}
	if r.points.Active() {
		ids = r.points.Value(name, mlx.FromInt32(ids, 1, len(ids))).Int32s()
	}
	return ids, nil
}

func (r *Run) runEncoder(t *family.Text, ids []int32) *mlx.Array {
	if t.Masked == nil {
		return t.Encode(ids)
	}
	valid := len(ids)
	if pad, ok := r.tokenizers[t.Tokenizer].PadID(); ok {
		for valid > 0 && ids[valid-1] == pad {
			valid--
		}
	}
	return t.Masked(ids, valid)
}

// encodeReference takes a picture to its latents [C, h, w] in the pipeline's
// dtype. Those that were used last are kept, for runs with other seeds.
func (r *Run) encodeReference(img shown) *mlx.Array {
	looked := r.points.Active()
	if !looked {
		if s, ok := r.pictures.find(func(s encoded) bool { return s.hash == img.hash }); ok {
			return s.latents
		}
	}
	fit := r.family.(family.Editor).Reference(img.RGBA, r.Multiple())
	latents := mlx.Scope(func() *mlx.Array { return r.encodePicture(fit, "latents.reference").AsType(r.dtype) })
	mlx.Eval(latents)
	mlx.StopPoint()
	if !looked {
		const most = 16
		mlx.Keep(latents)
		r.pictures.add(encoded{img.hash, latents}, most)
	}
	return latents
}

// predictors are those of a run's prompts. That for the negative prompt is nil
// without one.
type predictors struct {
	prompt, negative family.Predictor
	rows             int // tokens that the transformer sees of the prompt
}

// predictors encodes what the transformer receives besides latents, prompts and
// pictures, and prepares to predict.
func (r *Run) predictors() (out predictors, err error) {
	h, w := r.latentSize(r.Height, r.Width)
	c := family.Conditions{Guidance: r.Guidance, Keep: r.keep}
	texts := map[string][]*mlx.Array{}
	var pictures []shown
	for _, img := range r.References {
		pictures = append(pictures, newShown(picture.Opaque(img)))
	}
	for _, prompt := range r.prompts {
		r.points.Negative = prompt.name == "negative"
		if texts[prompt.name], err = r.encodePrompt(prompt, pictures); err != nil {
			return out, err
		}
	}
	r.points.Negative = false
	for _, img := range pictures {
		c.References = append(c.References, r.encodeReference(img))
	}
	if err := r.ensure(component.Transformers); err != nil {
		return out, err
	}
	for _, prompt := range r.prompts {
		c.Text = texts[prompt.name]
		predict, err := r.family.Predictor(c, h, w, r.compiler())
		if err != nil {
			return out, err
		}
		if prompt.name == "negative" {
			out.negative = predict
			continue
		}
		out.prompt = predict
		rows := c.Text[len(c.Text)-1]
		out.rows = rows.Dim(rows.Ndim() - 2)
	}
	return out, nil
}

// keep keeps arrays until the last step is done.
func (r *Run) keep(arrays ...*mlx.Array) {
	mlx.Keep(arrays...)
	r.kept = append(r.kept, arrays...)
}

// forget frees what is kept.
func (r *Run) forget() {
	for _, a := range r.kept {
		a.Free()
	}
	r.kept = nil
}

// compiler fuses on a GPU. On the CPU MLX would call a C++ compiler for it and
// gain nothing, and nothing may be fused while a hook looks inside.
func (r *Run) compiler() family.Compiler {
	if r.device == mlx.CPU && !r.compileOnCPU || r.points.Active() {
		return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array { return f }
	}
	return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array {
		compiled, free := mlx.CompileUntil(f)
		r.compiled = append(r.compiled, free)
		return compiled
	}
}
