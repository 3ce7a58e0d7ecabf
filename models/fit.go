package models

import (
	"fmt"
	"image"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// available returns the memory that is available for the model, in bytes: free memory and that of
// the loaded weights. It returns 0 if that is unknown.
func (p *Pipeline) available() int64 {
	if p.memory > 0 {
		return p.memory
	}
	free := mlx.FreeMemory(p.device)
	if free == 0 {
		return 0
	}
	for _, l := range p.loadables {
		if l.loaded {
			m := p.weightsMemory(l, p.loader.Quantize, l.staged)
			if free += m.bytes; l.table != nil {
				free -= m.table
			}
		}
	}
	return free
}

// defaultRequest returns a request with the model's defaults and without a prompt.
func (p *Pipeline) defaultRequest() Request {
	d := p.Defaults
	return Request{
		NegativePrompt: d.NegativePrompt, Height: d.Height, Width: d.Width, Steps: d.Steps, Guidance: d.Guidance,
		MaxSequenceLength: d.MaxSequenceLength,
	}
}

// defaultRun returns the run of defaultRequest.
func (p *Pipeline) defaultRun() (*Run, error) {
	r, err := p.newRun(p.defaultRequest())
	if err == nil {
		r.tokenizePrompts() // an error does not matter: edit models lack their reference images
	}
	return r, err
}

// checkFit chooses how weights share the memory for the largest of some runs, and warns if it does not fit. With random
// weights that is an error.
func (p *Pipeline) checkFit(runs []*Run, batch int, warn func(string)) error {
	available := p.available()
	if available == 0 || len(runs) == 0 {
		return nil
	}
	var largest *Run
	var peak int64
	for _, r := range runs {
		r.batch = max(1, batch)
		if n := r.Estimate().Peak(); largest == nil || n > peak {
			largest, peak = r, n
		}
	}
	largest.fit(available)
	switch e := largest.Estimate(); {
	case e.Peak() <= available:
	case p.random != nil:
		return errs.Requestf("%s", largest.shortage(e, available, ""))
	case warn != nil:
		warn(largest.shortage(e, available, ": the run may fail, or slow this machine down"))
	}
	return nil
}

// fit chooses how the pipeline's weights share the memory. Loading components again and again takes
// time, so each measure is taken only if it must be.
func (r *Run) fit(available int64) {
	w := &r.Pipeline.residency
	for _, measure := range []*bool{&w.shortLookahead, &w.lowRAM, &w.decodeAlone} {
		if r.Estimate().Peak() > available {
			*measure = true
		}
	}
}

// fittingBatch returns the batch size if that many images fit into memory, and otherwise the
// largest half, quarter and so on that does, at least 1.
func (r *Run) fittingBatch(batch int) int {
	if r.loader == nil {
		return batch
	}
	available := r.available()
	for ; batch > 1 && available > 0; batch /= 2 {
		if r.changed(func(other *Run) { other.batch = batch }).Estimate().Peak() <= available {
			break
		}
	}
	return batch
}

// changed returns a copy of the run with a change.
func (r *Run) changed(change func(*Run)) *Run {
	other := *r
	change(&other)
	return &other
}

// shortage returns a message that the run needs more memory than is available, with the
// consequence, and with settings that fit.
func (r *Run) shortage(e Estimate, available int64, consequence string) string {
	var b strings.Builder
	what := fmt.Sprintf("an image of %dx%d", r.Width, r.Height)
	if r.batch > 1 {
		what = fmt.Sprintf("a batch of %d images of %dx%d", r.batch, r.Width, r.Height)
	}
	fmt.Fprintf(&b, "%s in %v needs about %s of memory", what, r.dtype, units.About(e.Peak()))
	if e.LowRAM {
		b.WriteString(", even with one component of the model in memory at a time,")
	}
	fmt.Fprintf(&b, " and %s are free%s", units.About(available), consequence)
	if remedies := r.remedies(available); len(remedies) > 0 {
		b.WriteString("; try " + strings.Join(remedies, ", or "))
	} else {
		b.WriteString("; neither quantized weights nor a smaller image would fit")
	}
	return b.String()
}

// remedies returns up to three combinations of flags with which the run fits.
func (r *Run) remedies(available int64) (fitting []string) {
	const limit = 3
	quantize := r.loader.Quantize
	try := func(flags string, q *mlx.Quantization, change func(*Run)) (fits bool) {
		need := r.changed(change).estimate(leastMemory, q).Peak()
		if len(fitting) < limit && need <= available {
			fitting = append(fitting, fmt.Sprintf("%s (%s)", flags, units.About(need)))
		}
		return need <= available
	}
	if r.batch > 1 {
		try("--batch-size 1", quantize, func(other *Run) { other.batch = 1 })
	}
	smaller := func(flags string, q *mlx.Quantization) {
		for _, quarters := range []int{3, 2, 1} { // of each side
			width, height := r.part(r.Width, quarters), r.part(r.Height, quarters)
			change := func(other *Run) { other.Width, other.Height = width, height }
			if try(fmt.Sprintf("%s--width %d --height %d", flags, width, height), q, change) {
				break
			}
		}
	}
	quantizable := quantize == nil && !r.quantized()
	var q *mlx.Quantization
	if quantizable {
		for _, name := range []string{"8", "4"} {
			q, _ = component.ParseQuantization(name, 0) // a name that is valid
			try("-q "+name, q, func(*Run) {})
		}
	}
	smaller("", quantize)
	if len(fitting) == 0 && quantizable {
		smaller("-q 4 ", q)
	}
	return fitting
}

// quantized reports whether the model's files have quantized weights.
func (p *Pipeline) quantized() bool {
	for _, l := range p.loadables {
		if slices.ContainsFunc(l.found, func(f nn.Found) bool { return f.Quantized != nil }) {
			return true
		}
	}
	return false
}

// BatchSize returns the batch size that generates images of this run fastest. A single image keeps
// a GPU busy unless it is small: on an H200, four images of 512x512 took 0.88 of the time that they
// took one by one, and eight of 256x256 took 0.74. On the CPU batches gain nothing. The batch is
// smaller if it does not fit into memory. It must run on the MLX thread.
func (r *Run) BatchSize() int {
	tokens := r.latentTokens() + r.referenceTokens()
	n := 1
	switch {
	case r.device == mlx.CPU || r.Overrides != nil || r.Latents.Data != nil || r.Hook != nil:
	case tokens <= 256:
		n = 8
	case tokens <= 1024:
		n = 4
	}
	return r.fittingBatch(n)
}

// BatchSize returns the batch size of a request's run, 1 for a request that cannot be run.
func (p *Pipeline) BatchSize(request Request) int {
	r, err := p.Prepare(request, 1)
	if err != nil {
		return 1
	}
	return r.BatchSize()
}

// referenceSizes returns the sizes in which the reference images are encoded.
func (r *Run) referenceSizes() (sizes []image.Point) {
	for i, img := range r.References {
		if i == 0 && r.showsInpainted {
			sizes = append(sizes, image.Pt(r.Width, r.Height))
			continue
		}
		sizes = append(sizes, r.referenceSize(img.Bounds().Size()))
	}
	return sizes
}

// referenceSize returns the size in which a reference image is encoded: that of the run if it is split into
// layers.
func (r *Run) referenceSize(size image.Point) image.Point {
	if r.images() > 1 {
		return image.Pt(r.Width, r.Height)
	}
	return r.editor(len(r.References)).ReferenceSize(size, r.Multiple())
}

// referenceTokens returns the number of tokens of the reference images in the transformer's
// sequence.
func (r *Run) referenceTokens() (n int) {
	for _, size := range r.referenceSizes() {
		n += r.Pipeline.tokens(size.Y, size.X)
	}
	return n
}
