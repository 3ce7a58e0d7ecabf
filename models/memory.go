package models

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
)

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

// ensure loads a part for the run, if it is not loaded.
func (r *Run) ensure(dir string) error {
	if part := r.parts[dir]; part == nil || part.loaded {
		return nil
	}
	defer r.pace.keep()
	return r.Pipeline.ensure(dir, r.Progress)
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
