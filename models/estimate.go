package models

import (
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// An Estimate is an estimate of the memory of a run, in bytes.
type Estimate struct {
	Device        mlx.Device
	Dtype         mlx.Dtype
	Width, Height int              // of the image
	Weights       map[string]int64 // weights of each component in memory, by folder, and of the preview decoder
	LowRAM        bool             // only one text encoder or the transformer is in memory at a time
	Rewrite       int64            // peak of rewriting the prompt with the model's language model, before all else; 0 if it is not known
	Encode        int64            // peak of encoding, including the weights in memory; 0 if it does not run
	Step          int64            // peak of the steps, likewise
	Decode        int64            // peak of decoding, likewise
}

// Peak returns the peak of all phases but Rewrite, which few runs have.
func (e Estimate) Peak() int64 { return max(e.Encode, e.Step, e.Decode) }

// AllWeights returns the size of the weights of all components.
func (e Estimate) AllWeights() (n int64) {
	for _, bytes := range e.Weights {
		n += bytes
	}
	return n
}

// Estimate estimates the memory of the run. It must run on the MLX thread.
func (r *Run) Estimate() Estimate { return r.estimate(r.residency, r.loader.Quantize) }

// estimate is Estimate with another residency, and with plain weights quantized to q.
func (r *Run) estimate(w residency, q *mlx.Quantization) Estimate {
	m := r.memoryModel()
	if r.device.Backend() == mlx.BackendCUDA {
		m.lookahead = w.lookahead(r)
	}
	return r.estimateWith(w, q, m)
}

func (r *Run) estimateWith(w residency, q *mlx.Quantization, m memoryModel) Estimate {
	e := estimator{Run: r, residency: w, memoryModel: m, room: r.available(), weights: map[string]weightsMemory{}}
	e.out = Estimate{Device: r.device, Dtype: r.dtype, Width: r.Width, Height: r.Height, Weights: map[string]int64{}, LowRAM: w.lowRAM}
	for dir, l := range r.loadables {
		if r.cached[dir] && !l.loaded {
			continue
		}
		e.weights[dir] = r.weightsMemory(l, q, r.Split == SplitStages)
		e.out.Weights[dir] = e.weights[dir].bytes
	}
	if r.previewer != nil {
		e.out.Weights[previewWeights] = weightsSize(r.previewer.component.Model)
	}
	defer r.divideRows()()
	tokens, encoder := e.encode()
	e.encodeImages(encoder)
	e.step(tokens)
	inMemory := component.Transformers // next to the autoencoder
	if w.decodeAlone {
		inMemory = component.Autoencoders
	}
	e.out.Decode = e.autoencoderPeak(r.Autoencoder, r.vae.DecodeMemory, r.Height, r.Width, inMemory)
	return e.out
}

// An estimator makes one estimate.
type estimator struct {
	*Run
	residency   residency
	memoryModel memoryModel
	room        int64                    // available memory, 0 if that is unknown
	weights     map[string]weightsMemory // by folder
	out         Estimate
}

// previewWeights is the key of the preview decoder in Estimate.Weights.
const previewWeights = "preview decoder"

// weightsWith returns the size of the weights in memory when a component runs.
func (e *estimator) weightsWith(dir string) int64 {
	switch {
	case !e.residency.lowRAM:
		return e.out.AllWeights()
	case dir == component.Autoencoders:
		return e.out.Weights[dir] + e.out.Weights[previewWeights]
	}
	return e.out.Weights[dir] + e.out.Weights[component.Autoencoders] + e.out.Weights[previewWeights]
}

// autoencoderPeak returns the peak of encoding or decoding an image while a component is in memory.
func (e *estimator) autoencoderPeak(a *Autoencoder, memory memoryFunc, height, width int, dir string) int64 {
	free := int64(0)
	if e.room > 0 {
		free = max(1, e.room-e.weightsWith(dir))
	}
	n := a.setBudget(height, width, free, memory)
	if lookahead := e.memoryModel.lookahead; lookahead > 0 { // about a third of n is allocated ahead of the work
		n = min(n, max(lookahead+overshoot, n*2/3))
	}
	return e.weightsWith(dir) + n
}

// encode estimates the text encoders. It returns the number of tokens of each prompt in the
// transformer's sequence, and the folder of the last text encoder, which is still in memory when
// reference images are encoded.
func (e *estimator) encode() (tokens []int, encoder string) {
	encoder = component.Autoencoders
	for _, prompt := range e.prompts {
		rows := 0
		for i, t := range e.family.PromptEncodings(e.References) {
			n := e.textTokens(&t, prompt, i)
			rows = max(0, n-t.PrefixTokens, t.LeastRows)
			if t.LimitsRows {
				rows = min(rows, e.tokenLimit(&t))
			}
			l := e.loadables[t.Encoder]
			if l == nil || e.cached[t.Encoder] {
				continue
			}
			encoder = t.Encoder
			e.addEncoder(encoder, pass{blocks: e.blocksOf(l.Component), tokens: n, rows: 1, weightsMemory: e.weights[encoder]})
			if t.SeesReferences && len(e.References) > 0 {
				vision, tokens := e.family.(family.VisionEncoder).Vision(e.References)
				e.addEncoder(encoder, pass{blocks: e.blocksOf(vision), tokens: tokens, rows: 1, weightsMemory: e.weights[encoder]})
			}
		}
		tokens = append(tokens, rows)
	}
	return tokens, encoder
}

func (e *estimator) addEncoder(encoder string, p pass) {
	e.out.Encode = max(e.out.Encode, e.weightsWith(encoder)+e.memoryModel.estimate(p))
}

// encodeImages estimates encoding the reference images, and the masked image of a model that fills
// masks.
func (e *estimator) encodeImages(encoder string) {
	sizes := e.referenceSizes()
	if e.Fills() {
		sizes = append(sizes, image.Pt(e.Width, e.Height))
	}
	for _, size := range sizes {
		e.out.Encode = max(e.out.Encode, e.autoencoderPeak(e.Autoencoder, e.vae.EncodeMemory, size.Y, size.X, encoder))
	}
}

// step estimates a step, by the tokens of each prompt.
func (e *estimator) step(text []int) {
	const dir = component.Transformers
	if !e.notLoaded[dir] {
		references := e.referenceTokens()
		blocks := e.blocksOf(e.declared.Transformer())
		var passes []pass
		stepCache := int64(0)
		cached, ok := e.family.(family.KVCached)
		once := ok && cached.ConditionsOnce()
		for _, n := range text {
			tokens := e.latentTokens() + references + n
			p := pass{blocks: blocks, tokens: tokens, rows: e.batch, weightsMemory: e.weights[dir]}
			if once {
				p.tokens, p.shared = tokens-references-n, references+n
			}
			passes = append(passes, p)
			if e.StepCache != "" { // two arrays of hidden states
				width := int64(component.Width(e.declared.Transformer().Model))
				stepCache += 2 * int64(tokens*e.batch) * width * e.memoryModel.item
			}
		}
		e.out.Step = e.weightsWith(dir) + e.memoryModel.estimate(passes...) + stepCache
		if f, ok := e.family.(family.TimeTabled); ok {
			steps := min(len(e.timesteps()), family.TableSteps)
			if f.TableOfPrompt() {
				steps *= len(text)
			}
			e.out.Step += int64(steps) * int64(f.TimeLayers().Width()) * e.memoryModel.item
			if e.freesTimeLayers(e.residency) {
				e.out.Step -= e.weights[dir].table
			}
		}
		if ok && e.device == mlx.CPU {
			rows := e.batch
			if once {
				rows = 1
			}
			for _, n := range text {
				e.out.Step += cached.CacheSize(references*rows, n*rows) * e.memoryModel.item
			}
		}
	}
	if e.Image != nil {
		e.out.Step = max(e.out.Step, e.autoencoderPeak(e.Autoencoder, e.vae.EncodeMemory, e.Height, e.Width, dir))
	}
	if a := e.previewer; a != nil {
		e.out.Step = max(e.out.Step, e.autoencoderPeak(a, a.vae.DecodeMemory, e.images()*e.Height, e.Width, dir))
	}
}

// textTokens returns the number of tokens that a text encoder sees of a prompt, or the limit if the
// prompt is not tokenized.
func (r *Run) textTokens(t *family.PromptEncoding, prompt *prompt, i int) int {
	if i < len(prompt.tokens) && prompt.tokens[i].Count > 0 {
		return prompt.tokens[i].Count
	}
	return r.tokenLimit(t) + t.PrefixTokens
}
