package models

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/nn"
	"github.com/gomflux/gomflux/weights"
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
func measure(c component, ck *weights.Checkpoint) (*part, error) {
	found, mismatch := c.match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	return &part{component: c, found: found, sizes: map[mlx.Quantization]footprint{}}, nil
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
	return err
}
