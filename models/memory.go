package models

import (
	"fmt"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A part is a component whose weights can be freed and loaded again.
type part struct {
	component
	found  []nn.Found // for each of its parameters
	sizes  map[mlx.Quantization]footprint
	loaded bool
}

// measure declares a part by the headers of its checkpoint, and refuses tensors
// that are not the component's.
func measure(c component, ck *checkpoint.Checkpoint) (*part, error) {
	found, mismatch := c.match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &part{component: c, found: found, sizes: map[mlx.Quantization]footprint{}}, nil
}

// packing is how each of the part's parameters is quantized in memory if its plain
// weights are to q; nil for one that is not.
func (p *part) packing(q *mlx.Quantization) []*mlx.Quantization {
	quantize := p.quantization(q)
	list := make([]*mlx.Quantization, len(p.found))
	for i, parameter := range nn.Parameters(p.model) {
		if list[i] = p.found[i].Quantized; list[i] == nil && quantize != nil {
			list[i] = quantize(parameter)
		}
	}
	return list
}

// free frees the parts that are loaded, except the autoencoder, which is small.
func (p *Pipeline) free() {
	for name, part := range p.parts {
		if name != autoencoderDir && part.loaded {
			p.loader.unload(part.component)
			part.loaded = false
		}
	}
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
	if p.lowRAM && dir != autoencoderDir {
		p.free()
	}
	ck, err := part.open(p.loader.fsys)
	if err != nil {
		return err
	}
	defer ck.Close()
	p.loading = true
	defer func() { // after a panic too, which is how a job is interrupted
		p.loading = false
		if !part.loaded {
			p.loader.unload(part.component) // what was read of it
		}
	}()
	p.loader.report = report
	err = p.loader.weights(part.component, ck)
	part.loaded = err == nil
	p.keepPace()
	return err
}

// ahead is how much memory MLX may take beyond what is in memory between two
// runs. CUDA is given work as fast as MLX can, and every kernel's memory is taken
// when it is given, so without a limit that is tens of gigabytes. On an H200
// FLUX.1-dev at 1024x1024 takes 46.2 GB of memory and 0.192 s a step without a
// limit, 41.6 and 0.188 with 8 GB, 37.9 and 0.195 with 4, 36.8 and 0.197 with 2;
// at 4 bits 26.4 and 0.199, 17.7 and 0.207, 14.0 and 0.206, 12.9 and 0.220.
func (w way) ahead(r *Request) int64 {
	most := int64(8e9)
	if w.near {
		most = 2e9
	}
	const usual = 2 << 20 // pixels, of two pictures of 1024x1024
	return most * max(usual, int64(r.Height)*int64(r.Width)*int64(max(1, w.batch))) / usual
}

// pace limits the memory that MLX takes in advance for a run, until restore.
func (p *Pipeline) pace(ahead int64) (restore func()) {
	if p.device.String() != "cuda" {
		return func() {}
	}
	outer, outerAhead := p.limit, p.ahead
	p.limit, p.ahead = mlx.SetMemoryLimit(0), int(ahead)
	p.keepPace()
	return func() {
		mlx.SetMemoryLimit(p.limit)
		p.limit, p.ahead = outer, outerAhead
	}
}

// keepPace counts from what is in memory now.
func (p *Pipeline) keepPace() {
	if p.limit > 0 {
		mlx.SetMemoryLimit(min(p.limit, mlx.ActiveMemory()+p.ahead))
	}
}
