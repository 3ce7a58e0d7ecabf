package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
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

// Estimate is the memory that the run takes. It must run on the MLX thread.
func (r *Run) Estimate() Estimate { return r.estimate(r.way, r.loader.Quantize) }

// ownRequest has the model's own settings and no prompt.
func (p *Pipeline) ownRequest() Request {
	d := p.Defaults
	return Request{NegativePrompt: d.NegativePrompt, Height: d.Height, Width: d.Width, Steps: d.Steps, Guidance: d.Guidance, MaxSequenceLength: d.MaxSequenceLength}
}

// ownRun is the run of ownRequest.
func (p *Pipeline) ownRun() (*Run, error) {
	r, err := p.sketch(p.ownRequest())
	if err == nil {
		r.complete() // as far as it goes: a model that edits is shown no pictures
	}
	return r, err
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
			free += p.footprint(part, p.loader.Quantize).bytes
		}
	}
	return free
}

// estimate is Estimate for another way, and for weights that are quantized to q.
func (r *Run) estimate(way way, q *mlx.Quantization) Estimate {
	m := r.meter()
	if r.device.Backend() == mlx.BackendCUDA {
		m.ahead = way.ahead(r)
	}
	return r.estimateWith(way, q, m)
}

func (r *Run) estimateWith(way way, q *mlx.Quantization, m meter) Estimate {
	e := estimator{Run: r, way: way, meter: m, room: r.room(), footprints: map[string]footprint{}}
	e.out = Estimate{Device: r.device, Dtype: r.dtype, Width: r.Width, Height: r.Height, Weights: map[string]int64{}, LowRAM: way.lowRAM}
	for dir, part := range r.parts {
		e.footprints[dir] = r.footprint(part, q)
		e.out.Weights[dir] = e.footprints[dir].bytes
	}
	text, encoder := e.texts()
	references := e.references(encoder)
	e.step(text, references)
	last := component.Transformers // what is in memory beside the autoencoder
	if way.alone {
		last = component.Autoencoders
	}
	e.out.Decode = e.coding(r.Height, r.Width, r.vae.DecodeMemory, last)
	return e.out
}

// An estimator makes one estimate.
type estimator struct {
	*Run
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
	case dir == component.Autoencoders:
		return e.out.Weights[dir]
	}
	return e.out.Weights[dir] + e.out.Weights[component.Autoencoders]
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
// sees, by prompt, and what is in memory when pictures are encoded then.
func (e *estimator) texts() (tokens []int, encoder string) {
	encoder = component.Autoencoders
	for _, prompt := range e.prompts {
		seen := 0
		for i, t := range e.family.Texts(e.References) {
			n := e.textTokens(&t, prompt, i)
			seen = max(0, n-t.Uncounted)
			if t.CutsRows {
				seen = min(seen, e.limit(&t))
			}
			part := e.parts[t.Encoder]
			if part == nil {
				continue
			}
			encoder = t.Encoder
			e.encodes(encoder, pass{blocks: e.stackOf(part.Component), tokens: n, rows: 1, footprint: e.footprints[encoder]})
			if t.Looks && len(e.References) > 0 {
				vision, tokens := e.family.(family.Looker).Vision(e.References)
				e.encodes(encoder, pass{blocks: e.stackOf(vision), tokens: tokens, rows: 1, footprint: e.footprints[encoder]})
			}
		}
		tokens = append(tokens, seen)
	}
	return tokens, encoder
}

// stackOf describes a component's blocks.
func (p *Pipeline) stackOf(c component.Component) component.Stack {
	if p.stack != nil {
		return p.stack(c)
	}
	return c.Blocks()
}

func (e *estimator) encodes(encoder string, p pass) {
	e.out.Encode = max(e.out.Encode, e.with(encoder)+e.meter.passes(p))
}

// references estimates the encoding of pictures that an edit is shown, and returns
// how many tokens the transformer sees of them.
func (e *estimator) references(encoder string) (tokens int) {
	for _, img := range e.References {
		size := e.family.(family.Editor).ReferenceSize(img.Bounds().Size(), e.Multiple())
		tokens += e.Pipeline.tokens(size.Y, size.X)
		e.out.Encode = max(e.out.Encode, e.coding(size.Y, size.X, e.vae.EncodeMemory, encoder))
	}
	return tokens
}

// step estimates a step, by the tokens of each prompt and of references.
func (e *estimator) step(text []int, references int) {
	const dir = component.Transformers
	if !e.without[dir] {
		blocks := e.stackOf(e.declared.Transformer())
		var passes []pass
		for _, n := range text {
			tokens := e.Pipeline.tokens(e.Height, e.Width) + references + n
			passes = append(passes, pass{blocks: blocks, tokens: tokens, rows: e.batch, footprint: e.footprints[dir]})
		}
		e.out.Step = e.with(dir) + e.meter.passes(passes...)
		if f, ok := e.family.(family.Cacher); ok && e.device == mlx.CPU {
			e.out.Step += f.CacheSize(references*e.batch) * e.meter.item
		}
	}
	if e.Image != nil {
		e.out.Step = max(e.out.Step, e.coding(e.Height, e.Width, e.vae.EncodeMemory, dir))
	}
}

// textTokens is how many a text encoder sees of a prompt: as many as there may be
// where that is not known.
func (r *Run) textTokens(t *family.Text, prompt *prompt, i int) int {
	if i < len(prompt.tokens) && prompt.tokens[i].IDs != nil {
		return len(prompt.tokens[i].IDs)
	}
	return r.limit(t) + t.Uncounted
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
	for i, parameter := range nn.Parameters(part.Model) {
		bytes, unpacked := parameter.Memory(part.found[i], p.dtype, packing[i])
		f.bytes += bytes
		if parameter.Kind() != nn.LinearWeight {
			continue
		}
		shape := parameter.Stored()
		n := int64(shape[0]) * int64(shape[1])
		f.linear += n
		if unpacked && !(packing[i] != nil && p.device.Backend() == mlx.BackendMetal) {
			f.unpacked += n
		}
	}
	return f
}

// A pass is one of a component's blocks over rows of so many tokens.
type pass struct {
	blocks       component.Stack
	tokens, rows int
	footprint
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
func (m meter) passes(passes ...pass) int64 {
	var most int64
	var made, read, kernels float64
	for _, s := range passes {
		n := float64(s.tokens) * float64(s.rows)
		unpacked := float64(s.unpacked)
		if m.device == mlx.CPU {
			scores := s.blocks.Scores * float64(s.rows) * float64(s.blocks.Heads) * float64(s.tokens) * float64(s.tokens)
			block := unpacked / float64(max(1, s.blocks.Blocks))
			most = max(most, int64(n*s.blocks.Alive+max(scores+s.blocks.Cast*block, s.blocks.CastAlone*block))*m.item)
			continue
		}
		blocks := float64(s.blocks.Blocks)
		made += blocks*n*s.blocks.Made + unpacked
		read += blocks*n*s.blocks.Read + float64(s.linear) + unpacked
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
func (p *Pipeline) checkFit(runs []*Run, batch int, warn func(string)) {
	room := p.room()
	if room == 0 {
		return
	}
	if len(runs) == 0 {
		own, err := p.ownRun()
		if err != nil {
			return // there is no run to warn of
		}
		runs = []*Run{own}
	}
	var largest *Run
	var most int64
	for _, r := range runs {
		r.batch = max(1, batch)
		if n := r.Estimate().Peak(); largest == nil || n > most {
			largest, most = r, n
		}
	}
	// loading parts again and again takes time, and is done as far as it must be
	for _, short := range []*bool{&p.way.near, &p.way.lowRAM, &p.way.alone} {
		if largest.Estimate().Peak() > room {
			*short = true
		}
	}
	if e := largest.Estimate(); e.Peak() > room && warn != nil {
		warn(largest.shortage(e, room))
	}
}

// fitting is so many pictures at once, or the largest half, quarter and so on of
// them that fits into memory, or one.
func (r *Run) fitting(batch int) int {
	if r.loader == nil {
		return batch
	}
	room := r.room()
	for ; batch > 1 && room > 0; batch /= 2 {
		if r.with(func(other *Run) { other.batch = batch }).Estimate().Peak() <= room {
			break
		}
	}
	return batch
}

// with is the run with a change.
func (r *Run) with(change func(*Run)) *Run {
	other := *r
	change(&other)
	return &other
}

// shortage says that there is too little memory for the run, and what can be done.
func (r *Run) shortage(e Estimate, room int64) string {
	var b strings.Builder
	what := fmt.Sprintf("a picture of %dx%d", r.Width, r.Height)
	if r.batch > 1 {
		what = fmt.Sprintf("%d pictures of %dx%d at once", r.batch, r.Width, r.Height)
	}
	fmt.Fprintf(&b, "%s in %v needs about %s of memory", what, r.dtype, units.About(e.Peak()))
	if e.LowRAM {
		b.WriteString(", even with one part of the model in memory at a time,")
	}
	fmt.Fprintf(&b, " and %s are free: it may fail, or slow this machine down", units.About(room))
	if remedies := r.remedies(room); len(remedies) > 0 {
		b.WriteString("; what fits is " + strings.Join(remedies, ", or "))
	}
	return b.String()
}

// remedies are the flags, up to three of them, with which the run fits.
func (r *Run) remedies(room int64) (fitting []string) {
	const most = 3
	quantize := r.loader.Quantize
	try := func(flags string, q *mlx.Quantization, change func(*Run)) (fits bool) {
		need := r.with(change).estimate(way{near: true, lowRAM: true, alone: true}, q).Peak()
		if len(fitting) < most && need <= room {
			fitting = append(fitting, fmt.Sprintf("%s (%s)", flags, units.About(need)))
		}
		return need <= room
	}
	if r.batch > 1 {
		try("--batch-size 1", quantize, func(other *Run) { other.batch = 1 })
	}
	if quantize == nil && !r.quantized() {
		for _, name := range []string{"8", "4"} {
			if q, err := component.ParseQuantization(name, 0); err == nil {
				try("-q "+name, q, func(*Run) {})
			}
		}
	}
	for _, part := range []int{3, 2, 1} { // quarters of each side
		side := func(n int) int { return max(1, n*part/4/r.Multiple()) * r.Multiple() }
		flags := fmt.Sprintf("--width %d --height %d", side(r.Width), side(r.Height))
		if try(flags, quantize, func(other *Run) { other.Width, other.Height = side(r.Width), side(r.Height) }) {
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

// BatchSize is how many pictures of the run are made fastest at once. A GPU is busy
// with one picture unless that is small; on an H200, four of 512x512 took 0.88 of the
// time that they took one by one, and eight of 256x256 0.74. On the CPU nothing is
// gained. There are fewer where that many do not fit into memory. It must run on the
// MLX thread.
func (r *Run) BatchSize() int {
	tokens := r.Pipeline.tokens(r.Height, r.Width) + r.referenceTokens()
	n := 1
	switch {
	case r.device == mlx.CPU || r.Given != nil || r.Latents.Data != nil || r.Hook != nil:
	case tokens <= 256:
		n = 8
	case tokens <= 1024:
		n = 4
	}
	return r.fitting(n)
}

// BatchSize is that of a request's run, 1 for a request that cannot be run.
func (p *Pipeline) BatchSize(request Request) int {
	r, err := p.Prepare(request, 1)
	if err != nil {
		return 1
	}
	return r.BatchSize()
}

// referenceTokens is how many tokens the transformer sees of the pictures that an
// edit is shown.
func (r *Run) referenceTokens() (n int) {
	for _, img := range r.References {
		size := r.family.(family.Editor).ReferenceSize(img.Bounds().Size(), r.Multiple())
		n += r.Pipeline.tokens(size.Y, size.X)
	}
	return n
}
