package models

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/weights"
)

// A part is a component whose weights can be freed and loaded again.
type part struct {
	component
	bytes  int64
	loaded bool
}

// measure declares a part by the headers of its checkpoint, and refuses tensors
// that are not the component's.
func measure(c component, ck *weights.Checkpoint) (*part, error) {
	found, mismatch := c.match(ck)
	if mismatch != nil {
		return nil, mismatch
	}
	p := &part{component: c}
	for _, f := range found {
		p.bytes += f.Bytes()
	}
	return p, nil
}

// short says whether the machine has no room for all parts beside each other,
// and some to work with.
func (p *Pipeline) short() bool {
	var total int64
	for _, part := range p.parts {
		total += part.bytes
	}
	free := mlx.FreeMemory(p.device)
	return free > 0 && total+total/4 > free
}

// ensure loads a part. Where memory is short it frees the others first, except
// the autoencoder, which is small.
func (p *Pipeline) ensure(dir string, report func(Progress)) error {
	part := p.parts[dir]
	switch {
	case part == nil || part.loaded:
		return nil
	case p.loading:
		return fmt.Errorf("the model's %s is needed while another part is loaded (a callback that tells of loading cannot run the model)", dir)
	}
	for name, other := range p.parts {
		if p.lowRAM && name != autoencoderDir && other.loaded {
			p.loader.unload(other.component)
			other.loaded = false
		}
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
