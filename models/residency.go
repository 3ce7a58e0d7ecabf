package models

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// A residency decides which weights are in memory together.
type residency struct {
	shortLookahead bool // MLX may allocate less ahead of the work on a GPU
	lowRAM         bool // only one text encoder or the transformer is in memory at a time
	// decodeAlone means that the transformer is freed before the autoencoder decodes. With lowRAM its
	// layers that see only the timestep are freed before the first step; see family.TimeTable.
	decodeAlone bool
}

// leastMemory takes all measures that reduce the memory of a run.
var leastMemory = residency{shortLookahead: true, lowRAM: true, decodeAlone: true}

// lookahead returns how many bytes MLX may allocate beyond those in use between two runs. MLX
// queues work on CUDA as fast as it can, and allocates the memory of every kernel when it is
// queued, so without a limit that is tens of gigabytes. On an H200 at 1024x1024, a step of Z-Image
// takes 12.1 GB and 94 to 99 ms without a limit, 3.2 GB and 93 to 95 ms with 3 GB, and 1.5 GB and
// 101 to 105 ms with 1 GB.
func (w residency) lookahead(r *Run) int64 {
	limit := int64(2.5e9)
	if w.shortLookahead {
		limit = 1.2e9
	}
	const pixels = 1 << 20 // of an image of 1024x1024; more pixels get a larger limit
	return limit * max(pixels, int64(r.Height)*int64(r.Width)*int64(max(1, r.batch))) / pixels
}

// checkQuantizations returns an error if the device does not support a quantization of the
// weights: the requested one, or one that the files have or that layers keep at more bits.
func (p *Pipeline) checkQuantizations() error {
	q := p.loader.Quantize
	checked := map[mlx.Quantization]bool{}
	if q != nil {
		if err := component.CheckQuantization(*q); err != nil {
			return err
		}
		checked[*q] = true
	}
	for _, dir := range sorted(p.loadables) {
		l := p.loadables[dir]
		for i, layer := range l.quantizations(q) {
			if layer == nil || checked[*layer] {
				continue
			}
			checked[*layer] = true
			if err := component.CheckQuantization(*layer); err != nil {
				return fmt.Errorf("%s: tensor %s: %w", l.found[i].File, l.found[i].Name, err)
			}
		}
	}
	return nil
}

// unload frees the weights of all components except the autoencoder, which is small.
func (p *Pipeline) unload() {
	for name, l := range p.loadables {
		if name != component.Autoencoders && l.loaded {
			p.free(l)
		}
	}
}

// MakeRoom frees the weights of text encoders and the transformer, so that a language model has memory,
// unless all fit: a language model takes about as much as the text encoders. Runs read them again.
func (p *Pipeline) MakeRoom() error {
	switch {
	case p.closed:
		return ErrClosed
	case p.loading:
		return errors.New("a language model is needed while the model is being loaded (a progress callback cannot run it)")
	}
	var needed int64
	for _, c := range p.loadables {
		if p.isTextEncoder(c.Dir) {
			needed += p.weightsMemory(c, p.loader.Quantize, p.staged).bytes
		}
	}
	if free := mlx.FreeMemory(p.device); p.residency.lowRAM || free > 0 && free < needed+needed/4 {
		p.unload()
	}
	return nil
}

// stage sets which blocks of a component are loaded next, and which its passes run.
func (p *Pipeline) stage(l *loadable) {
	var stages *nn.Stages
	if p.loader.Skip, l.staged = nil, p.staged; p.staged {
		stages, p.loader.Skip = p.stagesOf(l, p.loader.Quantize)
	}
	if s := l.Staged(); s != nil {
		s.Stage(stages)
	}
}

func (p *Pipeline) free(l *loadable) {
	p.loader.Unload(l.Component)
	l.loaded, l.table = false, nil
}

// ensureLoaded loads a component for the run unless it is loaded.
func (r *Run) ensureLoaded(dir string) error {
	var table *family.TimeTable
	if dir == component.Transformers && r.freesTimeLayers(r.residency) {
		table = r.times
	}
	r.Pipeline.staged = r.stages != nil
	if l := r.loadables[dir]; l == nil || l.usable(table, r.Pipeline.staged) {
		return nil
	}
	defer r.limiter.update()
	if !r.residency.lowRAM { // it was not loaded at first, so the memory was not needed until now
		delete(r.cached, dir)
		if available := r.available(); available > 0 {
			r.fit(available)
		}
	}
	return r.Pipeline.ensureLoaded(dir, table, r.Progress)
}

// HasTimeTable reports whether runs compute what depends on the timestep alone for many steps at once.
func (p *Pipeline) HasTimeTable() bool {
	_, ok := p.family.(family.TimeTabled)
	return ok
}

// freesTimeLayers reports whether the layers that fill the run's time table are not in memory during
// its steps.
func (r *Run) freesTimeLayers(w residency) bool {
	return r.HasTimeTable() && w.lowRAM && w.decodeAlone && r.Hook == nil && r.Overrides == nil && family.TableFits(r.timesteps())
}

// timesteps returns those of the evaluations that run.
func (r *Run) timesteps() []float32 { return r.schedule.Timesteps[r.plan.first:] }

// readAhead begins to read the weights of a component that is not loaded into the operating system's
// cache, while the run does something else. stop ends that; it may be called again. Errors are left
// to ensureLoaded.
func (r *Run) readAhead(dir string) (stop func()) {
	l := r.loadables[dir]
	if l == nil || l.loaded || r.random != nil || r.stages != nil { // a stage needs a part of the files
		return func() {}
	}
	ck, err := l.Open(r.loader.FS)
	if err != nil {
		return func() {}
	}
	limit := int64(4e9) // where the free memory is not known
	if free := mlx.FreeMemory(mlx.CPU); free > 0 {
		limit = free / 2 // the rest is for what the run does meanwhile
	}
	end := ck.ReadAhead(limit)
	return sync.OnceFunc(func() {
		end()
		ck.Close()
	})
}

// ensureLoaded loads a component unless it is loaded. With low RAM it frees the others first. A table,
// which may be nil, is filled and replaces the layers that fill it.
func (p *Pipeline) ensureLoaded(dir string, table *family.TimeTable, report func(Progress)) error {
	l := p.loadables[dir]
	switch {
	case l == nil || l.usable(table, p.staged):
		return nil
	case p.loading:
		return fmt.Errorf("the model's %s is needed while another component is being loaded "+
			"(a progress callback cannot run the model)", dir)
	}
	if p.residency.lowRAM && dir != component.Autoencoders {
		p.unload()
	}
	if l.loaded { // for another run's table, or another split
		p.free(l)
	}
	p.stage(l)
	ck, err := l.Open(p.loader.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	p.loading = true
	defer func() { // also after a panic, by which a job is interrupted
		p.loading = false
		if !l.loaded {
			p.loader.Unload(l.Component) // the parameters that were read
		}
	}()
	p.loader.Report = LoadReport(report)
	if table != nil {
		err = p.loader.LoadUsing(l.Component, ck, p.family.(family.TimeTabled).TimeLayers().Modules(), table.Fill)
	} else {
		err = p.loader.Load(l.Component, ck)
	}
	if l.loaded = err == nil; l.loaded {
		l.table = table
	}
	return err
}
