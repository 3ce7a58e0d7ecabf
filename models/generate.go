package models

import (
	"crypto/sha256"
	"fmt"
	"image"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/picture"
)

// A Phase is a part of a run.
type Phase string

const (
	PhaseLoad   Phase = "load"
	PhaseEncode Phase = "encode"
	PhaseStep   Phase = "step"
	PhaseDecode Phase = "decode"
)

// Progress is what a run has reached. Phases are reported when they start
// (steps as step 0), steps when they are done.
type Progress struct {
	Phase             Phase
	Component         string // of PhaseLoad
	Bytes, TotalBytes int64
	Step, Steps       int // steps done, of all that run
}

// A Step is what a denoising step has made of a picture.
type Step struct {
	Index       int     // of the picture in its batch
	Step, Steps int     // steps done, of all that run
	Sigma       float64 // how much of the latents is still noise, from 1 to 0
	Latents     Latents
	// Denoised is what the latents would be without their noise, as far as the
	// model can tell at this step.
	Denoised Latents
}

// A Result is a picture and how long its parts took.
type Result struct {
	Image                *image.RGBA
	PromptTokens         int
	Steps                int           // that ran
	Scheduler            string        // its name
	Encode, Step, Decode time.Duration // Step is the sum over all steps, without OnStep
	PeakMemory           int           // bytes, of MLX's arrays
	EstimatedMemory      int64         // what PeakMemory was to be, 0 if that was not estimated
}

// Generate makes one picture. It must run on the MLX thread.
func (p *Pipeline) Generate(r Request) (*Result, error) {
	results, err := p.GenerateBatch(r, []uint64{r.Seed})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// BatchSize is how many pictures are made fastest at once. A GPU is busy with
// one picture unless that is small; on an H200, four of 512x512 took 0.88 of the
// time that they took one by one, and eight of 256x256 0.74. On the CPU nothing
// is gained. There are fewer where that many do not fit into memory.
func (p *Pipeline) BatchSize(r Request) int {
	tokens := r.Height / p.Multiple() * (r.Width / p.Multiple())
	if f, ok := p.family.(editor); ok && p.checkReferences(r.References) == nil {
		for _, img := range r.References {
			size := f.referenceSize(img.Bounds().Size(), p.Multiple())
			tokens += size.Y / p.Multiple() * (size.X / p.Multiple())
		}
	}
	n := 1
	switch {
	case p.device == mlx.CPU || r.Given != nil || r.Latents.Data != nil || r.Hook != nil:
	case tokens <= 256:
		n = 8
	case tokens <= 1024:
		n = 4
	}
	return p.fitting(r, n)
}

// GenerateBatch makes a picture for each of some seeds, which take the place of
// the request's, at once. Their pixels can differ by rounding from those that
// Generate makes. It must run on the MLX thread.
func (p *Pipeline) GenerateBatch(r Request, seeds []uint64) ([]*Result, error) {
	if err := p.checkBatch(&r, seeds); err != nil {
		return nil, err
	}
	if err := p.Check(r); err != nil {
		return nil, err
	}
	if err := mlx.Use(p.device); err != nil {
		return nil, err
	}
	defer p.enter(&r, len(seeds))()
	report := func(pr Progress) {
		if r.Progress != nil {
			r.Progress(pr)
		}
	}
	var away time.Duration // in OnStep
	if f := r.OnStep; f != nil {
		r.OnStep = func(s Step) error {
			start := time.Now()
			defer func() { away += time.Since(start) }()
			return f(s)
		}
	}
	mlx.ResetPeakMemory()
	var res Result // what all pictures have in common
	clock := time.Now()
	lap := func() time.Duration {
		d := time.Since(clock)
		clock = clock.Add(d)
		return d
	}

	schedule, err := p.schedule(&r)
	if err != nil {
		return nil, err
	}
	plan := p.plan(&r, schedule)
	if p.loader != nil {
		res.EstimatedMemory = p.Estimate(r, len(seeds)).Peak()
	}
	res.Scheduler = schedule.Name
	res.Steps = r.Steps - schedule.StepOf(plan.first+schedule.Order()-1)
	report(Progress{Phase: PhaseEncode, Steps: res.Steps})
	var predict, predictNegative predictor
	var kept []*mlx.Array
	free := func() {
		for _, a := range kept {
			a.Free()
		}
		kept = nil
	}
	defer free()
	if plan.predict {
		predict, predictNegative, err = p.prepare(&r, &res, func(arrays ...*mlx.Array) {
			mlx.Keep(arrays...)
			kept = append(kept, arrays...)
		})
		if err != nil {
			return nil, err
		}
	}
	res.Encode = lap()

	latents, err := p.denoise(r, seeds, schedule, plan, predict, predictNegative, report, res.Steps)
	if err != nil {
		return nil, err
	}
	res.Step = (lap() - away) / time.Duration(len(seeds))
	free()
	if p.alone {
		p.release()
		p.free()
		p.keepPace()
	}

	results := make([]*Result, len(seeds))
	for i := range results {
		report(Progress{Phase: PhaseDecode, Steps: res.Steps})
		one := res
		if one.Image, err = p.decodeResult(&r, latents, i); err != nil {
			return nil, err
		}
		one.Decode = lap()
		results[i] = &one
		res.Encode = 0 // of the others
	}
	for _, one := range results {
		one.PeakMemory = mlx.PeakMemory()
	}
	mlx.StopPoint()
	return results, nil
}

// enter makes the pipeline's state that of a run, which may be in a callback of
// another one, until leave.
func (p *Pipeline) enter(r *Request, batch int) (leave func()) {
	points, compiled := p.points, p.compiled
	p.points, p.compiled = hooks.Points{Func: r.Hook, Step: -1}, nil
	restore := p.pace(p.way(batch).ahead(r))
	return func() {
		p.release()
		restore()
		p.points, p.compiled = points, compiled
	}
}

// release frees what is compiled, which holds the weights.
func (p *Pipeline) release() {
	for _, free := range p.compiled {
		free()
	}
	p.compiled = nil
}

// checkBatch says what of a request cannot be for several seeds.
func (p *Pipeline) checkBatch(r *Request, seeds []uint64) error {
	switch {
	case len(seeds) == 0:
		return requestErrorf("a batch of no seeds")
	case len(seeds) > 1 && r.Given != nil:
		return requestErrorf("values are given for one picture, not for a batch of %d", len(seeds))
	case len(seeds) > 1 && r.Latents.Data != nil:
		return requestErrorf("initial latents are given for one picture, not for a batch of %d", len(seeds))
	}
	return nil
}

// decodeResult decodes one picture of latents [B, C, h, w], or what is given in
// their place.
func (p *Pipeline) decodeResult(r *Request, latents *mlx.Array, index int) (*image.RGBA, error) {
	if !r.has("vae.decode.in", -1) {
		return p.decodeWith(p.vae.Unscale, latents.Slice(0, index, index+1).Squeeze(0))
	}
	scale := p.ScaleFactor()
	z, err := r.given("vae.decode.in", -1, p.dtype, append([]int{1}, p.vae.Unscaled(r.Height/scale, r.Width/scale)...)...)
	if err != nil {
		return nil, err
	}
	return p.decode(func() *mlx.Array { return z })
}

// prepare encodes what the transformer receives besides latents: prompts and
// pictures. The second predictor is that for the negative prompt, nil without
// one.
func (p *Pipeline) prepare(r *Request, res *Result, keep func(...*mlx.Array)) (predict, negative predictor, err error) {
	h, w := r.Height/p.ScaleFactor(), r.Width/p.ScaleFactor()
	c := conditions{guidance: r.Guidance, keep: keep}
	texts := map[string][]*mlx.Array{}
	var pictures []shown
	for _, img := range r.References {
		pictures = append(pictures, newShown(picture.Opaque(img)))
	}
	for _, what := range p.prompts(r) {
		p.points.Negative = what == "negative"
		if texts[what], err = p.encode(what, r, pictures); err != nil {
			return nil, nil, err
		}
	}
	p.points.Negative = false
	for _, img := range pictures {
		c.references = append(c.references, p.encodeReference(img))
	}
	if err := p.ensure("transformer", r.Progress); err != nil {
		return nil, nil, err
	}
	for _, what := range p.prompts(r) {
		c.text = texts[what]
		made, err := p.family.predictor(c, h, w, p.compiler())
		if err != nil {
			return nil, nil, err
		}
		if what == "negative" {
			negative = made
			continue
		}
		predict = made
		rows := c.text[len(c.text)-1]
		res.PromptTokens = rows.Dim(rows.Ndim() - 2)
	}
	return predict, negative, nil
}

// A pictureHash tells pictures apart.
type pictureHash [sha256.Size]byte

// A shown is a picture that the model is shown.
type shown struct {
	*image.RGBA
	hash pictureHash // of its size and pixels
}

func newShown(img *image.RGBA) shown {
	hash := sha256.New()
	fmt.Fprint(hash, img.Bounds().Size())
	for y := img.Rect.Min.Y; y < img.Rect.Max.Y; y++ {
		at := img.PixOffset(img.Rect.Min.X, y)
		hash.Write(img.Pix[at : at+4*img.Rect.Dx()])
	}
	return shown{img, pictureHash(hash.Sum(nil))}
}

func images(pictures []shown) []image.Image {
	var all []image.Image
	for _, s := range pictures {
		all = append(all, s.RGBA)
	}
	return all
}

// A seen is a picture that was encoded.
type seen struct {
	hash    pictureHash
	latents *mlx.Array
}

// encodeReference takes a picture to its latents [C, h, w] in the pipeline's
// dtype. Those that were used last are kept, for runs with other seeds.
func (p *Pipeline) encodeReference(img shown) *mlx.Array {
	looked := p.points.Active()
	if !looked {
		if s, ok := p.seen.find(func(s seen) bool { return s.hash == img.hash }); ok {
			return s.latents
		}
	}
	fit := p.family.(editor).reference(img.RGBA, p.Multiple())
	latents := mlx.Scope(func() *mlx.Array { return p.encodePicture(fit, "latents.reference").AsType(p.dtype) })
	mlx.Eval(latents)
	mlx.StopPoint()
	if !looked {
		const most = 16
		mlx.Keep(latents)
		p.seen.add(seen{img.hash, latents}, most)
	}
	return latents
}
