package parity

import (
	"cmp"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
)

// load loads the model and prepares the run's request.
func (r *replay) load() error {
	var err error
	if r.modelName, r.fsys, err = r.find(); err != nil {
		return err
	}
	if r.config != nil {
		if r.fsys, err = r.config(r.fsys); err != nil {
			return err
		}
	}
	switch {
	case r.ref.NewTokens > 0:
		return r.loadLanguage()
	case r.ref.Upscaler:
		return r.loadUpscaler()
	}
	o := models.LoadOptions{
		Device: r.Device, Dtype: r.Dtype, Quantize: r.Quantize, LoRAs: r.LoRAs, RuntimeLoRA: r.RuntimeLoRA,
		Group: r.Group,
	}
	if r.ref.live == nil {
		o.Partial, o.Overrides = r.ref.Pipeline, models.Overrides(&r.parts)
		o.Requests = func(p *models.Pipeline) []models.Request {
			r.pipeline = p
			r.parts = standIn{r.ref, p.Absent(), p.AbsentValues(), p.Dtype()}
			if r.request, err = r.newRequest(); err != nil {
				return nil
			}
			if len(r.parts.absent) > 0 {
				r.request.Overrides = &r.parts
			}
			return []models.Request{r.request}
		}
	}
	p, loadErr := models.Load(r.fsys, o)
	r.pipeline = p // nil after an error
	if errors.Is(loadErr, errs.ErrRequest) {
		loadErr = fmt.Errorf("run %s: %w: %w", r.run, ErrRun, loadErr)
	}
	if loadErr == nil {
		r.model, r.generate = p, p.Generate
	}
	if err := cmp.Or(err, loadErr); err != nil {
		return err
	}
	if r.Loaded != nil {
		r.Loaded(r.pipeline)
	}
	if r.untapped, err = untappedTensorsOf(r.fsys, r.pipeline.Components()); err != nil {
		return err
	}
	if r.ref.live != nil {
		r.ref.live.untapped = r.untapped.reason
		if r.request, err = r.newRequest(); err != nil {
			return err
		}
	}
	if err := r.pipeline.Check(r.request); err != nil {
		return fmt.Errorf("run %s: %w: %w", r.run, ErrRun, err)
	}
	r.passNames = passNames{r.ref, r.ref.batched() && r.pipeline.UsesNegativePrompt(r.request)}
	if r.ref.live != nil {
		r.ref.live.twice = r.inBatch
	}
	return nil
}

// A Prepared run is one that can be made again.
type Prepared struct {
	Model    string // its name or folder
	Pipeline *models.Pipeline
	Request  models.Request
}

// Prepare loads the model of the run in a folder, and makes a request of its settings. It belongs to the
// MLX thread. The caller closes the pipeline.
func Prepare(run string, o Options) (*Prepared, error) {
	ref, err := OpenRun(os.DirFS(run))
	if err != nil {
		return nil, err
	}
	r := &replay{Options: o, ref: ref, run: run}
	if err := r.load(); err != nil {
		r.close()
		return nil, err
	}
	if r.request.Steps == 0 {
		r.close()
		return nil, fmt.Errorf("run %s: %w as that of a pipeline", run, ErrRun)
	}
	return &Prepared{r.modelName, r.pipeline, r.request}, nil
}

// close closes the model, if it was loaded.
func (r *replay) close() {
	if r.model != nil {
		r.model.Close()
	}
}

// newRequest returns the run's settings as a request.
func (r *replay) newRequest() (models.Request, error) {
	s := r.ref.Settings
	q := models.Request{
		Prompt: s.Prompt, Height: s.Height, Width: s.Width, Steps: s.Steps, Guidance: s.Guidance, Seed: s.Seed,
		MaxSequenceLength: s.MaxSequenceLength, Scheduler: s.Scheduler, ImageStrength: s.ImageStrength,
		GuidanceInterval: s.GuidanceInterval, StepCache: s.StepCache, Sigmas: s.Sigmas, TrueCFGScale: s.TrueCFGScale,
		CFGNormalization: s.CFGNormalization, CFGTruncation: s.CFGTruncation, Split: r.Split,
	}
	switch {
	case s.NegativePrompt != nil:
		q.NegativePrompt = *s.NegativePrompt
	case family.Find(r.pipeline.Class).NeedsNegativePrompt:
		q.Guidance = min(q.Guidance, 1) // which disables guidance
	default:
		q.TrueCFGScale = 0 // as in diffusers
	}
	if r.parts.lacks(component.Transformers) { // what it takes is unknown, and nothing is predicted
		q.Guidance, q.TrueCFGScale = 0, 0
	}
	r.ref.await("latents.init")
	if noise := r.ref.Array("latents.init"); noise != nil && noise.Ndim() > 1 {
		q.Latents = models.Latents{Shape: noise.Shape()[1:], Data: noise.Floats()}
	} else {
		q.RNG = cmp.Or(s.RNG, "torch") // as diffusers draws noise for the seed
	}
	var err error
	switch {
	case s.Mask != "":
		if q.Inpaint, err = r.inpaint(); err != nil {
			return q, err
		}
	case s.Picture != "":
		if q.Image, err = r.readImage(s.Picture); err != nil {
			return q, err
		}
	}
	for _, name := range s.References {
		img, err := r.readImage(name)
		if err != nil {
			return q, err
		}
		q.References = append(q.References, img)
	}
	return q, nil
}

// inpaint returns the picture and the mask of the run. The result is pasted into the picture if it was
// in the reference.
func (r *replay) inpaint() (*inpaint.Input, error) {
	s := r.ref.Settings
	img, err := r.readImage(s.Picture)
	if err != nil {
		return nil, err
	}
	mask, err := r.readImage(s.Mask)
	if err != nil {
		return nil, err
	}
	o := inpaint.Options{Feather: s.MaskBlur, NoPasteBack: !r.ref.pastes()}
	if s.MaskCrop != nil {
		o.Crop, o.Padding = true, *s.MaskCrop
	}
	in, err := inpaint.New(img, mask, o)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %w", r.run, ErrRun, err)
	}
	return in, nil
}

// find finds the model: the one of the options, or else the one that the dump was made with.
func (r *replay) find() (string, fs.FS, error) {
	name := r.Options.Model
	if name == "" {
		if name = r.ref.Model; name == "" {
			return "", nil, fmt.Errorf("run %s: its settings name no model (set one with --model)", r.run)
		}
		for _, up := range []string{".", "..", "../.."} {
			folder := filepath.Join(r.run, up, name)
			if _, err := os.Stat(folder); err == nil && !filepath.IsAbs(name) {
				name = folder
				break
			}
		}
	}
	find := catalog.Find
	if r.ref.Upscaler {
		find = catalog.FindUpscaler
	}
	if r.ref.Upscaler || !disk.IsFolder(name) {
		source, err := find(name)
		if err != nil {
			return "", nil, err
		}
		return name, source.FS, nil
	}
	folder, err := checkpoint.OpenFolder(name)
	return name, folder, err
}

// readImage reads an input image of the run: a file in the run's folder, or next to it.
func (r *replay) readImage(name string) (image.Image, error) {
	file := filepath.Join(r.run, name)
	if filepath.IsAbs(name) {
		file = name
	} else if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		file = filepath.Join(r.run, "..", name)
	}
	p, err := picture.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return p.Pixels(), nil
}
