package models

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A part is a component whose weights can be freed and loaded again.
type part struct {
	component.Component
	found  []nn.Found // for each of its parameters
	sizes  map[mlx.Quantization]footprint
	loaded bool
}

// newPart declares a part by the headers of its checkpoint, and refuses tensors
// that are not the component's.
func newPart(c component.Component, ck *checkpoint.Checkpoint) (*part, error) {
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &part{Component: c, found: found, sizes: map[mlx.Quantization]footprint{}}, nil
}

// packing is how each of the part's parameters is quantized in memory if its plain
// weights are to q; nil for one that is not.
func (p *part) packing(q *mlx.Quantization) []*mlx.Quantization {
	quantize := p.LayerQuantizer(q)
	list := make([]*mlx.Quantization, len(p.found))
	for i, parameter := range nn.Parameters(p.Model) {
		if list[i] = p.found[i].Quantized; list[i] == nil && quantize != nil {
			list[i] = quantize(parameter)
		}
	}
	return list
}

// checkPacking makes sure that the device does all that weights are quantized to:
// what the pipeline is, and what the files have or layers keep at more bits.
func (p *Pipeline) checkPacking() error {
	q := p.loader.Quantize
	seen := map[mlx.Quantization]bool{}
	if q != nil {
		if err := component.CheckQuantization(*q); err != nil {
			return err
		}
		seen[*q] = true
	}
	for _, dir := range sorted(p.parts) {
		part := p.parts[dir]
		for i, own := range part.packing(q) {
			if own == nil || seen[*own] {
				continue
			}
			seen[*own] = true
			if err := component.CheckQuantization(*own); err != nil {
				return fmt.Errorf("%s: tensor %s: %w", part.found[i].File, part.found[i].Name, err)
			}
		}
	}
	return nil
}

// free frees the parts that are loaded, except the autoencoder, which is small.
func (p *Pipeline) free() {
	for name, part := range p.parts {
		if name != component.Autoencoders && part.loaded {
			p.loader.Unload(part.Component)
			part.loaded = false
		}
	}
}

// ensure loads a part for the run.
func (r *Run) ensure(dir string) error {
	err := r.Pipeline.ensure(dir, r.Progress)
	r.pace.keep()
	return err
}

// ensure loads a part. Where memory is short it frees the others first.
func (p *Pipeline) ensure(dir string, report func(Progress)) error {
	part := p.parts[dir]
	switch {
	case part == nil || part.loaded:
		return nil
	case p.loading:
		return fmt.Errorf("the model's %s is needed while another part is loaded (a callback that tells of loading cannot run the model)", dir)
	}
	if p.way.lowRAM && dir != component.Autoencoders {
		p.free()
	}
	ck, err := part.Open(p.loader.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	p.loading = true
	defer func() { // after a panic too, which is how a job is interrupted
		p.loading = false
		if !part.loaded {
			p.loader.Unload(part.Component) // what was read of it
		}
	}()
	p.loader.Report = reporter(report)
	err = p.loader.Load(part.Component, ck)
	part.loaded = err == nil
	return err
}

// reporter makes progress of what is read of a component.
func reporter(report func(Progress)) func(component string, done, total int64) {
	if report == nil {
		return nil
	}
	return func(component string, done, total int64) {
		report(Progress{Phase: PhaseLoad, Component: component, Bytes: done, TotalBytes: total})
	}
}

// ahead is how much memory MLX may take beyond what is in memory between two
// runs. CUDA is given work as fast as MLX can, and every kernel's memory is taken
// when it is given, so without a limit that is tens of gigabytes. On an H200
// FLUX.1-dev at 1024x1024 takes 46.2 GB of memory and 0.192 s a step without a
// limit, 41.6 and 0.188 with 8 GB, 37.9 and 0.195 with 4, 36.8 and 0.197 with 2;
// at 4 bits 26.4 and 0.199, 17.7 and 0.207, 14.0 and 0.206, 12.9 and 0.220.
func (w way) ahead(r *Run) int64 {
	most := int64(8e9)
	if w.near {
		most = 2e9
	}
	const usual = 2 << 20 // pixels, of two pictures of 1024x1024
	return most * max(usual, int64(r.Height)*int64(r.Width)*int64(max(1, r.batch))) / usual
}

// A pace limits the memory that MLX takes in advance for a run on CUDA.
type pace struct {
	limit int // MLX's own limit of memory, 0 where there is no pace
	ahead int // what MLX may take beyond what there is
}

// setPace sets the limit for work on a device, until restore.
func setPace(d mlx.Device, ahead int64) *pace {
	if d.Backend() != mlx.BackendCUDA {
		return &pace{}
	}
	p := &pace{mlx.SetMemoryLimit(0), int(ahead)}
	p.keep()
	return p
}

// keep counts from what is in memory now.
func (p *pace) keep() {
	if p != nil && p.limit > 0 {
		mlx.SetMemoryLimit(min(p.limit, mlx.ActiveMemory()+p.ahead))
	}
}

func (p *pace) restore() {
	if p.limit > 0 {
		mlx.SetMemoryLimit(p.limit)
	}
}
