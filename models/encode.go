package models

import (
	"cmp"
	"image"
	"slices"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/models/tuning"
)

// encodePrompt returns the outputs of the text encoders for a prompt. They are cached for runs with
// other seeds.
func (r *Run) encodePrompt(prompt *prompt, references []input) ([]*mlx.Array, error) {
	encodings := r.family.PromptEncodings(images(references))
	var hashes []imageHash
	if slices.ContainsFunc(encodings, func(t family.PromptEncoding) bool { return t.SeesReferences }) {
		for _, reference := range references {
			hashes = append(hashes, reference.hash)
		}
	}
	cached := !r.points.Active() && r.Overrides == nil
	if cached {
		e, ok := r.promptCache.find(func(e encodedPrompt) bool {
			return e.prompt == prompt.text && e.limit == r.MaxSequenceLength && slices.Equal(e.images, hashes) &&
				e.staged == (r.stages != nil)
		})
		if ok {
			return r.share(e.embeds...), nil
		}
	}
	var all []*mlx.Array
	for i, t := range encodings {
		var after *mlx.Array
		if t.After != nil {
			after = all[slices.IndexFunc(encodings, func(e family.PromptEncoding) bool { return e.Embeds == t.After.Embeds })]
		}
		embeds, err := r.encodeText(&t, prompt, &prompt.tokens[i], after)
		if err != nil {
			return nil, err
		}
		all = append(all, embeds)
	}
	if cached {
		const limit = 2 // prompt and negative prompt
		mlx.Keep(all...)
		shared := r.share(all...)
		r.promptCache.add(encodedPrompt{prompt.text, r.MaxSequenceLength, hashes, r.stages != nil, all}, limit)
		return shared, nil
	}
	return all, nil
}

// encodeText returns the output of one text encoder for a prompt. after is that of the encoding before, which it
// takes too, or nil.
func (r *Run) encodeText(t *family.PromptEncoding, prompt *prompt, tokens *family.Tokens, after *mlx.Array) (*mlx.Array, error) {
	tap := prompt.name + "." + t.Embeds
	if r.isOverridden(tap, -1) {
		x, err := override(r.Overrides, tap, r.dtype, t.Shape...)
		if err != nil {
			return nil, err
		}
		return r.points.Value(tap, x), nil
	}
	var key []byte // nil without the cache on disk
	if r.usesDisk() {
		key = r.embeddingsKey(t, prompt)
		if embeds := r.fromDisk(key); embeds != nil {
			r.read++
			return embeds, nil
		}
	}
	ids, err := r.promptIDs(t, prompt, tokens)
	if err != nil {
		return nil, err
	}
	embeds, err := r.runTextEncoder(t, ids, after, tap)
	if err == nil && key != nil {
		r.toDisk(key, embeds, tokens)
	}
	return embeds, err
}

// runTextEncoder returns the output of a text encoder, which is loaded if necessary.
func (r *Run) runTextEncoder(t *family.PromptEncoding, ids []int32, after *mlx.Array, tap string) (*mlx.Array, error) {
	if err := r.ensureLoaded(t.Encoder); err != nil {
		return nil, err
	}
	first, end, err := r.validIDs(t, ids)
	if err != nil {
		return nil, err
	}
	embeds := mlx.Scope(func() *mlx.Array {
		x := r.runEncoder(t, ids, after, first, end)
		if limit := r.tokenLimit(t); t.LimitsRows && x.Dim(0) > limit {
			x = x.Slice(0, 0, limit)
		}
		return r.points.Value(tap, x.Contiguous()) // in the layout of embeddings from a file
	})
	mlx.Eval(embeds)
	mlx.StopPoint()
	r.encoded++
	return embeds, nil
}

// idsOf returns the ids that the text encoders got, for encodings that need them.
func (r *Run) idsOf(prompt *prompt, references []input) ([][]int32, error) {
	encodings := r.family.PromptEncodings(images(references))
	all := make([][]int32, len(encodings))
	for i, t := range encodings {
		if !t.NeedsIDs {
			continue
		}
		if all[i] = prompt.hooked[t.IDs]; all[i] != nil {
			continue
		}
		var err error
		if all[i], err = r.givenIDs(&t, prompt, &prompt.tokens[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// promptIDs returns the input of a text encoder: the ids of the prompt, their override, or what a
// hook returns.
func (r *Run) promptIDs(t *family.PromptEncoding, prompt *prompt, tokens *family.Tokens) ([]int32, error) {
	ids, err := r.givenIDs(t, prompt, tokens)
	if err == nil && r.points.Active() {
		ids = r.points.Value(prompt.name+"."+t.IDs, mlx.FromInt32(ids, 1, len(ids))).Int32s()
		if prompt.hooked == nil {
			prompt.hooked = map[string][]int32{}
		}
		prompt.hooked[t.IDs] = ids
	}
	return ids, err
}

// givenIDs returns the ids of a prompt, or their override.
func (r *Run) givenIDs(t *family.PromptEncoding, prompt *prompt, tokens *family.Tokens) ([]int32, error) {
	if tokens.Count > 0 && tokens.IDs == nil { // the embeddings have gone
		made, err := r.makeTokens(t, prompt)
		if err != nil {
			return nil, err
		}
		*tokens = made
	}
	ids, tap := tokens.IDs, prompt.name+"."+t.IDs
	if r.isOverridden(tap, -1) {
		x, err := override(r.Overrides, tap, mlx.Int32, 1, -1)
		if err != nil {
			return nil, err
		}
		ids = x.Int32s()
		if !t.LimitsRows && !t.NeverCut {
			if err := r.checkLength(t, prompt.label, len(ids)-t.PrefixTokens); err != nil {
				return nil, err
			}
		}
	}
	return ids, nil
}

func (r *Run) runEncoder(t *family.PromptEncoding, ids []int32, after *mlx.Array, first, end int) *mlx.Array {
	switch {
	case t.EncodeAfter != nil:
		return t.EncodeAfter(ids, after)
	case t.EncodeMasked != nil:
		return t.EncodeMasked(ids, first, end)
	}
	return t.Encode(ids)
}

// validIDs returns where the ids without padding begin and end, which encodings with a mask need.
func (r *Run) validIDs(t *family.PromptEncoding, ids []int32) (first, end int, err error) {
	end = len(ids)
	if t.EncodeMasked == nil {
		return 0, end, nil
	}
	pad, ok := int32(randomPad), r.random != nil
	if !ok {
		tokenizer, err := r.tokenizers[t.Tokenizer].load()
		if err != nil {
			return 0, 0, err
		}
		pad, ok = tokenizer.PadID()
	}
	if ok {
		for end > 0 && ids[end-1] == pad {
			end--
		}
		for first < end && ids[first] == pad {
			first++
		}
	}
	return first, end, nil
}

// encodeReference returns the latents [C, h, w] of a reference image in the pipeline's dtype.
func (r *Run) encodeReference(img input) *mlx.Array {
	return r.encodeInput(inputKey{image: img.hash, size: r.referenceSize(img.Bounds().Size())}, func() *mlx.Array {
		return r.encodeImage(r.fitReference(img), nil, "latents.reference").AsType(r.dtype)
	})
}

// encodeInput returns the latents of an input image that encode returns. They are kept for runs with
// other seeds, unless a hook must see how they are computed.
func (r *Run) encodeInput(key inputKey, encode func() *mlx.Array) *mlx.Array {
	cached := !r.points.Active()
	if cached {
		e, ok := r.inputCache.find(func(e encodedInput) bool { return e.key == key })
		if r.allHave(ok) {
			return r.share(e.latents)[0]
		}
	}
	defer r.divideRows()()
	latents := mlx.Scope(encode)
	mlx.Eval(latents)
	mlx.StopPoint()
	if cached {
		const limit = 18 // reference images, the image to start from, and what is not masked of it
		mlx.Keep(latents)
		r.inputCache.add(encodedInput{key, latents}, limit)
		return r.share(latents)[0]
	}
	return latents
}

// share returns arrays of a cache as arrays of the run, since a run in a callback may drop them from
// the cache.
func (r *Run) share(cached ...*mlx.Array) (shared []*mlx.Array) {
	for _, a := range cached {
		shared = append(shared, owned(a))
	}
	mlx.Eval(shared...)
	r.keep(shared...)
	return shared
}

// predictors are the predictors of a run.
type predictors struct {
	prompt   family.Predictor
	negative family.Predictor // nil without a negative prompt
	// the step caches of both, nil without
	promptCache, negativeCache *stepcache.Cache
	rows                       int // tokens of the prompt in the transformer's sequence
	// references is the time in which the reference images were encoded.
	references time.Duration
}

// predictors encodes the prompts and the reference images, and prepares the predictors.
func (r *Run) predictors() (out predictors, err error) {
	stopReading := r.readAhead(component.Transformers)
	defer stopReading()
	h, w := r.latentsSize()
	c := family.Conditioning{Guidance: r.Guidance, Images: r.images(), Keep: r.keep, Sequence: r.sequence}
	texts, ids := map[string][]*mlx.Array{}, map[string][][]int32{}
	references := r.references()
	for _, prompt := range r.own() {
		r.points.Negative = prompt.name == "negative"
		if texts[prompt.name], err = r.encodePrompt(prompt, references); err != nil {
			return out, err
		}
		if ids[prompt.name], err = r.idsOf(prompt, references); err != nil {
			return out, err
		}
	}
	r.points.Negative = false
	start := time.Now()
	if c.Fill, err = r.fill(); err != nil {
		return out, err
	}
	var inpainted *mlx.Array // the image to inpaint, as the model sees it, which diffusers encodes first
	if r.mask != nil && len(references) > 0 {
		inpainted = r.imageLatents(r.latentShape(h, w)).Squeeze(0).AsType(r.dtype)
	}
	for i, img := range references {
		if i == 0 && r.showsInpainted && !r.placesApart(img) {
			c.References = append(c.References, inpainted)
			continue
		}
		c.References = append(c.References, r.encodeReference(img))
		out.references = time.Since(start)
	}
	stopReading()
	tables := r.newTimeTables(c, texts)
	if err := r.ensureLoaded(component.Transformers); err != nil {
		return out, err
	}
	for i, prompt := range r.own() {
		c.Text, c.IDs, c.StepCache, c.Times = texts[prompt.name], ids[prompt.name], r.newStepCache(), tables[i]
		predict, err := r.family.Predictor(c, h, w, r.compiler())
		if err != nil {
			return out, err
		}
		if c.StepCache != nil && c.StepCache.Rule.Name == stepcache.Easy {
			predict = stepcache.Predictions(c.StepCache, predict)
		}
		if prompt.name == "negative" {
			out.negative, out.negativeCache = predict, c.StepCache
			continue
		}
		out.prompt, out.promptCache = predict, c.StepCache
		rows := c.Text[len(c.Text)-1]
		out.rows = rows.Dim(0)
	}
	return out, nil
}

// placesApart reports whether the image to inpaint is encoded as a reference image too, because the prompt
// has a place for each token of it and the run's size would give it others.
func (r *Run) placesApart(img input) bool {
	_, places := r.family.(family.ReferencePlacer)
	return places && r.family.(family.Editor).ReferenceSize(img.Bounds().Size(), r.Multiple()) != image.Pt(r.Width, r.Height)
}

// newTimeTables returns the tables for the predictors of the run's prompts, nil for a family without
// them and while a hook looks at modules.
func (r *Run) newTimeTables(c family.Conditioning, texts map[string][]*mlx.Array) []*family.TimeTable {
	prompts := r.own()
	tables := make([]*family.TimeTable, len(prompts))
	f, ok := r.family.(family.TimeTabled)
	if !ok || r.points.Active() {
		return tables
	}
	for i, prompt := range prompts {
		if i > 0 && !f.TableOfPrompt() {
			tables[i] = r.times
			continue
		}
		c := c
		c.Text = texts[prompt.name]
		tables[i] = &family.TimeTable{
			Timesteps: r.timesteps,
			Compute:   func(timesteps []float32) *mlx.Array { return f.TableRows(c, timesteps) },
		}
		if i == 0 {
			r.times = tables[i]
		} else {
			r.times.Negative = tables[i]
		}
	}
	return tables
}

// newStepCache returns a step cache for the predictions of a prompt, nil without one.
func (r *Run) newStepCache() *stepcache.Cache {
	if r.StepCache == "" {
		return nil
	}
	rule, err := stepcache.ParseRule(r.StepCache)
	if err != nil { // the request is checked
		mlx.Throw(err)
	}
	c := &stepcache.Cache{Rule: rule, Compiled: r.compilation() != mlx.Uncompiled, Group: cmp.Or(r.sequence, r.stages)}
	r.stepCaches = append(r.stepCaches, c)
	return c
}

// keep keeps arrays in memory until the last step is done.
func (r *Run) keep(arrays ...*mlx.Array) {
	mlx.Keep(arrays...)
	r.kept = append(r.kept, arrays...)
}

// freeKept frees the arrays of keep, of step caches and of the time table.
func (r *Run) freeKept() {
	r.times.Free()
	for _, c := range r.stepCaches {
		c.Free()
	}
	r.stepCaches = nil
	for _, a := range r.kept {
		if a != nil { // not of a block that another process runs
			a.Free()
		}
	}
	r.kept, r.encodedImage, r.inpainting, r.times = nil, nil, nil, nil
}

// compilation returns how the run compiles: see [tuning.Compile]. It compiles nothing while a hook
// looks at modules, since it must see every operation, no messages of a pair of processes, and no stages, between
// which the host waits.
func (r *Run) compilation() mlx.CompileMode {
	if r.points.Active() || !r.sequence.Traceable() || r.stages != nil {
		return mlx.Uncompiled
	}
	return cmp.Or(r.compileMode, tuning.Compile(r.device))
}

// compiler returns a compiler for the run's device.
func (r *Run) compiler() family.Compiler {
	mode := r.compilation()
	return func(f func([]*mlx.Array) []*mlx.Array) func([]*mlx.Array) []*mlx.Array {
		if mode == mlx.Uncompiled {
			return f
		}
		compiled, free := mlx.CompileUntil(mode, f)
		r.compiled = append(r.compiled, free)
		return compiled
	}
}
