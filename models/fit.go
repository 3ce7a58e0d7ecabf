package models

import (
	"fmt"
	"image"
	"io/fs"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

// An Estimate is the memory that a run takes, in bytes.
type Estimate struct {
	Device        mlx.Device
	Dtype         mlx.Dtype
	Width, Height int // of the picture
	// Weights are those of each component, by its folder, as they are in memory.
	Weights map[string]int64
	// LowRAM says that only one of text encoders and transformer is in memory at a
	// time.
	LowRAM bool
	// Encode, Step and Decode are the most that is in memory in each phase, with the
	// weights that are there then. A phase that does not run is 0.
	Encode, Step, Decode int64
}

// Peak is the most of all phases.
func (e Estimate) Peak() int64 { return max(e.Encode, e.Step, e.Decode) }

// AllWeights are those of all components.
func (e Estimate) AllWeights() (n int64) {
	for _, bytes := range e.Weights {
		n += bytes
	}
	return n
}

// Estimate says what memory a run takes that makes so many pictures at once. The
// request must have been checked. It must run on the MLX thread.
func (p *Pipeline) Estimate(r Request, batch int) Estimate {
	return p.estimate(&r, p.way(batch))
}

// EstimateModel is Estimate for the first of o.For's runs, or for a run with the
// model's own settings, and says how much memory there is for it, 0 where that is
// not known. It reads configs and headers only. It must run on the MLX thread.
func EstimateModel(fsys fs.FS, o LoadOptions) (e Estimate, free int64, err error) {
	o.headersOnly = true
	p, err := Load(fsys, o)
	if err != nil {
		return Estimate{}, 0, err
	}
	defer p.Close()
	r := p.ownRequest()
	if o.For != nil {
		if runs := o.For(p); len(runs) > 0 {
			r = runs[0]
		}
	}
	return p.Estimate(r, max(1, o.Batch)), p.room(), nil
}

// ownRequest is a run with the model's own settings.
func (p *Pipeline) ownRequest() Request {
	d := p.Defaults
	return Request{NegativePrompt: d.NegativePrompt, Height: d.Height, Width: d.Width, Steps: d.Steps, Guidance: d.Guidance, MaxSequenceLength: d.MaxSequenceLength}
}

// A way is one in which a request can be run.
type way struct {
	batch    int
	quantize *mlx.Quantization
	// see Pipeline
	near, lowRAM, alone bool
}

// way is the one in which the pipeline runs requests.
func (p *Pipeline) way(batch int) way {
	w := way{batch: batch, near: p.near, lowRAM: p.lowRAM, alone: p.alone}
	if p.loader != nil {
		w.quantize = p.loader.quantize
	}
	return w
}

// room is the memory that there is for all of the model: what is free and what
// its loaded parts have; 0 where that is not known.
func (p *Pipeline) room() int64 {
	if p.memory > 0 {
		return p.memory
	}
	free := mlx.FreeMemory(p.device)
	if free == 0 {
		return 0
	}
	for _, part := range p.parts {
		if part.loaded {
			free += p.footprint(part, p.loader.quantize).bytes
		}
	}
	return free
}

func (p *Pipeline) estimate(r *Request, way way) Estimate {
	m := p.meter()
	if p.device.String() == "cuda" {
		m.ahead = way.ahead(r)
	}
	return p.estimateWith(r, way, m)
}

func (p *Pipeline) estimateWith(r *Request, way way, m meter) Estimate {
	e := estimator{Pipeline: p, r: r, way: way, meter: m, room: p.room(), footprints: map[string]footprint{}}
	e.out = Estimate{Device: p.device, Dtype: p.dtype, Width: r.Width, Height: r.Height, Weights: map[string]int64{}, LowRAM: way.lowRAM}
	for dir, part := range p.parts {
		e.footprints[dir] = p.footprint(part, way.quantize)
		e.out.Weights[dir] = e.footprints[dir].bytes
	}
	text, encoder := e.texts()
	references := e.references(encoder)
	e.step(text, references)
	last := "transformer" // what is in memory beside the autoencoder
	if way.alone {
		last = autoencoderDir
	}
	e.out.Decode = e.coding(r.Height, r.Width, p.vae.DecodeMemory, last)
	return e.out
}

// An estimator makes one estimate.
type estimator struct {
	*Pipeline
	r          *Request
	way        way
	meter      meter
	room       int64
	footprints map[string]footprint // by the components' folders
	out        Estimate
}

// with is what is in memory of weights when a component runs.
func (e *estimator) with(dir string) int64 {
	switch {
	case !e.way.lowRAM:
		return e.out.AllWeights()
	case dir == autoencoderDir:
		return e.out.Weights[dir]
	}
	return e.out.Weights[dir] + e.out.Weights[autoencoderDir]
}

// coding is what the autoencoder takes for a picture while a component is in
// memory.
func (e *estimator) coding(height, width int, memory func(int, int, mlx.Device, mlx.Dtype) int64, dir string) int64 {
	free := int64(0)
	if e.room > 0 {
		free = max(1, e.room-e.with(dir))
	}
	n := e.budget(height, width, free, memory)
	if ahead := e.meter.ahead; ahead > 0 { // about a third is memory that is taken in advance
		n = min(n, max(ahead+beyond, n*2/3))
	}
	return e.with(dir) + n
}

// texts estimates the text encoders. It returns how many tokens the transformer
// sees, by the prompt, and what is in memory when pictures are encoded then.
func (e *estimator) texts() (tokens map[string]int, encoder string) {
	tokens, encoder = map[string]int{}, autoencoderDir
	for _, what := range e.prompts(e.r) {
		for _, t := range e.family.texts(e.r.References) {
			n := e.textTokens(&t, what, e.r)
			tokens[what] = max(0, n-t.uncounted)
			if e.parts[t.encoder] == nil {
				continue
			}
			encoder = t.encoder
			e.encodes(encoder, e.family.encoder(encoder).of(n, 1, e.footprints[encoder]))
			if t.looks && len(e.r.References) > 0 {
				s := e.family.(looker).tower(e.r.References)
				s.footprint = e.footprints[encoder]
				e.encodes(encoder, s)
			}
		}
	}
	return tokens, encoder
}

func (e *estimator) encodes(encoder string, s stack) {
	e.out.Encode = max(e.out.Encode, e.with(encoder)+e.meter.passes(s))
}

// references estimates the encoding of pictures that an edit is shown, and returns
// how many tokens the transformer sees of them.
func (e *estimator) references(encoder string) (tokens int) {
	for _, img := range e.r.References {
		size := e.family.(editor).referenceSize(img.Bounds().Size(), e.Multiple())
		tokens += size.Y / e.Multiple() * (size.X / e.Multiple())
		e.out.Encode = max(e.out.Encode, e.coding(size.Y, size.X, e.vae.EncodeMemory, encoder))
	}
	return tokens
}

// step estimates a step.
func (e *estimator) step(text map[string]int, references int) {
	const dir = "transformer"
	if !e.without[dir] {
		tokens := e.r.Height / e.Multiple() * (e.r.Width / e.Multiple())
		var passes []stack
		for _, what := range e.prompts(e.r) {
			passes = append(passes, e.family.denoiser().of(tokens+references+text[what], e.way.batch, e.footprints[dir]))
		}
		e.out.Step = e.with(dir) + e.meter.passes(passes...)
		if f, ok := e.family.(cacher); ok && e.device == mlx.CPU {
			e.out.Step += f.cacheSize(references*e.way.batch) * e.meter.item
		}
	}
	if e.r.Image != nil {
		e.out.Step = max(e.out.Step, e.coding(e.r.Height, e.r.Width, e.vae.EncodeMemory, dir))
	}
}

// textTokens is how many a text encoder sees of a prompt: as many as there may be
// where that cannot be said.
func (p *Pipeline) textTokens(t *text, what string, r *Request) int {
	if p.tokenizers[t.tokenizer] != nil {
		if ids, err := p.tokenize(t, what, r); err == nil {
			return len(ids)
		}
	}
	return t.limitOf(r) + t.uncounted
}

// A footprint is what a component's weights take in memory.
type footprint struct {
	bytes int64
	// linear is how many there are in linear layers, and unpacked how many of these
	// are cast or unpacked for every product.
	linear, unpacked int64
}

// footprint is that of a part if its plain weights are quantized to q.
func (p *Pipeline) footprint(part *part, q *mlx.Quantization) (f footprint) {
	key := mlx.Quantization{}
	if q != nil {
		key = *q
	}
	if known, ok := part.sizes[key]; ok {
		return known
	}
	defer func() { part.sizes[key] = f }()
	packing := part.packing(q)
	for i, parameter := range nn.Parameters(part.model) {
		bytes, unpacked := parameter.Memory(part.found[i], p.dtype, packing[i])
		f.bytes += bytes
		if parameter.Kind() != nn.LinearWeight {
			continue
		}
		shape := parameter.Stored()
		n := int64(shape[0]) * int64(shape[1])
		f.linear += n
		if unpacked && !(packing[i] != nil && p.device.String() == "metal") {
			f.unpacked += n
		}
	}
	return f
}

// A stack is the blocks of a transformer or of a text encoder, as far as the
// memory goes that they take. What a block computes is counted in elements for
// each token.
type stack struct {
	blocks, heads int
	// made and read are what the kernels of a block write and read on a GPU.
	made, read float64
	// alive is what a block has at a time on the CPU, beside as many scores of
	// attention as there are, scores times.
	alive, scores float64
	// cast is how much of a block's weights are cast or unpacked at that time, and
	// castAlone how much at another, when there are no scores.
	cast, castAlone float64

	tokens, rows int // of a row, and of how many rows
	footprint
}

// of is a pass of the stack over rows of so many tokens.
func (s stack) of(tokens, rows int, f footprint) stack {
	s.tokens, s.rows, s.footprint = tokens, rows, f
	return s
}

// textStack is that of a language model. Its factors were measured with all four
// text encoders.
func textStack(blocks, heads, width, hidden int, scores float64) stack {
	w, h := float64(width), float64(hidden)
	return stack{blocks: blocks, heads: heads, made: 16*w + 10*h, read: 16*w + 10*h, alive: 10*w + 4*h, scores: scores, cast: 0.9}
}

func qwen3Stack(m *textenc.Qwen3) stack {
	c := m.Config
	return textStack(len(m.Layers), c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize, 1)
}

// A looker is a family whose text encoder is shown pictures.
type looker interface {
	// tower is its vision tower's pass over pictures, without a footprint.
	tower(references []image.Image) stack
}

// A cacher is a family that may keep what one step computed for the next ones.
type cacher interface {
	// cacheSize is how many elements it keeps of so many tokens of references.
	cacheSize(tokens int) int64
}

// A meter estimates what passes take on a device.
type meter struct {
	device mlx.Device
	item   int64 // bytes
	// ahead is what MLX takes in advance at most, 0 for no limit.
	ahead int64
	// commands are how many elements and kernels MLX puts into one command buffer
	commandElements, commandKernels float64
}

func (p *Pipeline) meter() meter {
	architecture := ""
	for _, d := range mlx.Devices() {
		if d.Device == p.device {
			architecture = d.Architecture
		}
	}
	return newMeter(p.device, p.dtype, architecture)
}

func newMeter(device mlx.Device, dtype mlx.Dtype, architecture string) meter {
	m := meter{device: device, item: 2}
	if dtype == mlx.Float32 {
		m.item = 4
	}
	m.commandKernels, m.commandElements = commandLimits(architecture)
	return m
}

// commandLimits are what MLX puts into a command buffer of a GPU at most: kernels,
// and elements that they read.
func commandLimits(architecture string) (kernels, elements float64) {
	const mi = 1 << 20
	switch architecture {
	case "sm_80":
		return 20, 400 * mi
	case "sm_90", "sm_100", "sm_120":
		return 100, 1000 * mi
	case "sm_121":
		return 20, 25 * mi
	}
	switch {
	case strings.HasPrefix(architecture, "sm_"):
		return 20, 100 * mi
	case strings.HasSuffix(architecture, "s"), strings.HasSuffix(architecture, "d"): // Max and Ultra
		return 50, 50 * mi
	}
	return 40, 40 * mi
}

// maxCommands is how many command buffers MLX has on their way before it waits for
// one to be done, and blockKernels about how many kernels a block is. Kernels that
// write less than smallKernel elements are done before many others are given to an
// H200.
const (
	beyond       = 3e8 // of a kernel that goes beyond the limit
	maxCommands  = 11
	blockKernels = 45
	smallKernel  = 2.5e6
)

// passes is what a step takes that is made of some passes.
//
// The CPU evaluates block by block, and of a block nearly all is in memory at once,
// since MLX takes memory for a hundred operations in advance. A GPU evaluates all
// passes together. MLX gives it work as fast as it can, takes the memory for that,
// and frees what was read only when a whole command buffer is done: so as much as
// maxCommands of them write is in memory.
func (m meter) passes(passes ...stack) int64 {
	var most int64
	var made, read, kernels float64
	for _, s := range passes {
		n := float64(s.tokens) * float64(s.rows)
		unpacked := float64(s.unpacked)
		if m.device == mlx.CPU {
			scores := s.scores * float64(s.rows) * float64(s.heads) * float64(s.tokens) * float64(s.tokens)
			block := unpacked / float64(max(1, s.blocks))
			most = max(most, int64(n*s.alive+max(scores+s.cast*block, s.castAlone*block))*m.item)
			continue
		}
		blocks := float64(s.blocks)
		made += blocks*n*s.made + unpacked
		read += blocks*n*s.read + float64(s.linear) + unpacked
		kernels += blocks * blockKernels
	}
	if m.device == mlx.CPU || kernels == 0 {
		return most
	}
	elements := m.commandElements + read/kernels // a buffer ends when there are more
	part := min(1, maxCommands*elements/read, maxCommands*m.commandKernels/kernels)
	part = max(part, blockKernels/kernels) // a block in any case
	all := int64(made*part*min(1, made/kernels/smallKernel)) * m.item
	if m.ahead > 0 {
		return min(all, m.ahead+beyond)
	}
	return all
}

// checkFit warns of a run that takes more memory than there is, and says what
// would make it fit.
func (p *Pipeline) checkFit(runs []Request, o LoadOptions) {
	room := p.room()
	if room == 0 {
		return
	}
	if len(runs) == 0 {
		runs = []Request{p.ownRequest()}
	}
	batch := max(1, o.Batch)
	largest, most := runs[0], int64(0)
	for _, r := range runs {
		if n := p.Estimate(r, batch).Peak(); n > most {
			largest, most = r, n
		}
	}
	// loading parts again and again takes time, and is done as far as it must be
	for _, short := range []*bool{&p.near, &p.lowRAM, &p.alone} {
		if p.Estimate(largest, batch).Peak() > room {
			*short = true
		}
	}
	if e := p.Estimate(largest, batch); e.Peak() > room && o.Warn != nil {
		o.Warn(p.shortage(e, room, &largest, batch))
	}
}

// fitting is so many pictures at once, or the largest half, quarter and so on of
// them that fits into memory, or one.
func (p *Pipeline) fitting(r Request, batch int) int {
	if p.loader == nil || p.checkNumbers(r) != nil {
		return batch
	}
	room := p.room()
	for batch > 1 && room > 0 && p.Estimate(r, batch).Peak() > room {
		batch /= 2
	}
	return batch
}

// shortage says that there is too little memory for a run, and what can be done.
func (p *Pipeline) shortage(e Estimate, room int64, r *Request, batch int) string {
	var b strings.Builder
	what := fmt.Sprintf("a picture of %dx%d", r.Width, r.Height)
	if batch > 1 {
		what = fmt.Sprintf("%d pictures of %dx%d at once", batch, r.Width, r.Height)
	}
	fmt.Fprintf(&b, "%s in %v needs about %s of memory", what, p.dtype, gigabytes(e.Peak()))
	if e.LowRAM {
		b.WriteString(", even with one part of the model in memory at a time,")
	}
	fmt.Fprintf(&b, " and %s are free: it may fail, or slow this machine down", gigabytes(room))
	if remedies := p.remedies(room, r, batch); len(remedies) > 0 {
		b.WriteString("; what fits is " + strings.Join(remedies, ", or "))
	}
	return b.String()
}

// remedies are the flags, up to three of them, with which a run fits.
func (p *Pipeline) remedies(room int64, r *Request, batch int) (fitting []string) {
	const most = 3
	try := func(flags string, r Request, way way) {
		if need := p.estimate(&r, way).Peak(); len(fitting) < most && need <= room {
			fitting = append(fitting, fmt.Sprintf("%s (%s)", flags, gigabytes(need)))
		}
	}
	as := way{batch: batch, quantize: p.loader.quantize, near: true, lowRAM: true, alone: true}
	if batch > 1 {
		one := as
		one.batch = 1
		try("--batch-size 1", *r, one)
	}
	if as.quantize == nil && !p.quantized() {
		for _, name := range []string{"8", "4"} {
			if q, err := ParseQuantization(name, 0); err == nil {
				less := as
				less.quantize = q
				try("-q "+name, *r, less)
			}
		}
	}
	for _, part := range []int{3, 2, 1} { // quarters of each side
		side := func(n int) int { return max(1, n*part/4/p.Multiple()) * p.Multiple() }
		smaller := *r
		smaller.Width, smaller.Height = side(r.Width), side(r.Height)
		before := len(fitting)
		if try(fmt.Sprintf("--width %d --height %d", smaller.Width, smaller.Height), smaller, as); len(fitting) > before {
			break
		}
	}
	return fitting
}

// quantized says whether the model's files have quantized weights.
func (p *Pipeline) quantized() bool {
	for _, part := range p.parts {
		if slices.ContainsFunc(part.found, func(f nn.Found) bool { return f.Quantized != nil }) {
			return true
		}
	}
	return false
}

// gigabytes is a number of bytes in words.
func gigabytes(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}
