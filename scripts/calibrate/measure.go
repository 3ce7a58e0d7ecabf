package main

import (
	"fmt"
	"image"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
)

// A bench is a model whose runs are measured.
type bench struct {
	*models.Pipeline
	// trial are the stacks that are tried, by class. Others are as they are.
	trial   map[*component.Class]component.Stack
	weights int // bytes in memory
	prompts int // so far
}

// stack is models.LoadOptions.Stack.
func (b *bench) stack(c component.Component) component.Stack {
	if s, ok := b.trial[c.Class]; ok {
		return s
	}
	return c.Blocks()
}

// A measured is a run, and the most memory that it took in a phase.
type measured struct {
	name  string
	run   *models.Run
	peaks map[models.Phase]int
}

// settled frees what nothing refers to any more, and returns what is in memory.
func settled() int {
	runtime.GC()
	mlx.StopPoint()
	mlx.ClearCache()
	time.Sleep(20 * time.Millisecond) // CUDA frees a moment later
	return mlx.ActiveMemory()
}

// A setting is what one run differs in from others.
type setting struct{ side, batch, tokens int }

// patience is the largest side of pictures on the CPU, where nothing else is asked
// for.
const patience = 256

// settings are all sizes with all batches whose pictures are as many pixels as the
// largest size, with the longest prompt, and shorter prompts of the smallest picture.
func (b *bench) settings(o options) (all []setting) {
	multiple := b.Multiple()
	sizes := o.sizes
	if len(sizes) == 0 {
		own := max(b.Defaults.Width, b.Defaults.Height)
		if b.Device() == mlx.CPU {
			own = min(own, patience)
		}
		sizes = []int{own / 4, own / 2, own}
	}
	for i := range sizes {
		sizes[i] = max(1, sizes[i]/multiple) * multiple
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	largest, tokens := sizes[len(sizes)-1], b.Defaults.MaxSequenceLength
	for _, side := range sizes {
		for _, batch := range o.batches {
			if batch == 1 || batch*side*side <= largest*largest {
				all = append(all, setting{side, batch, tokens})
			}
		}
	}
	return append(all, setting{sizes[0], 1, tokens / 2}, setting{sizes[0], 1, tokens / 4})
}

// measure runs the model with all settings.
func (b *bench) measure(o options) (all []*measured, err error) {
	settings := b.settings(o)
	for i, s := range settings {
		m := &measured{name: fmt.Sprintf("%dx%d, batch %d, prompt of %d", s.side, s.side, s.batch, s.tokens), peaks: map[models.Phase]int{}}
		fmt.Fprintf(os.Stderr, "%d of %d: %s\n", i+1, len(settings), m.name)
		for range o.repeats {
			if m.run, err = b.prepare(s); err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			if err := b.generate(m, s.batch); err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
		}
		m.run.Progress = nil
		all = append(all, m)
	}
	return all, nil
}

// prepare prepares a run of one step, always with another prompt, since the encodings
// of the last ones are kept. A model that only edits is shown a picture.
func (b *bench) prepare(s setting) (*models.Run, error) {
	b.prompts++
	words := strings.Fields("red blue green black white grey brown pink")
	r := models.Request{
		Prompt: strings.Repeat(words[b.prompts%len(words)]+" ", s.tokens),
		Height: s.side, Width: s.side, Steps: 1, Guidance: b.Defaults.Guidance, MaxSequenceLength: s.tokens,
	}
	run, err := b.Prepare(r, s.batch)
	if err != nil {
		r.References = []image.Image{image.NewRGBA(image.Rect(0, 0, s.side, s.side))}
		if edit, editErr := b.Prepare(r, s.batch); editErr == nil {
			return edit, nil
		}
	}
	return run, err
}

// generate adds what the run takes to m.
func (b *bench) generate(m *measured, batch int) error {
	kept := settled() - b.weights // of other runs
	phase := models.PhaseEncode
	m.run.Progress = func(p models.Progress) {
		m.peaks[phase] = max(m.peaks[phase], mlx.PeakMemory()-kept)
		mlx.ResetPeakMemory()
		if p.Phase != models.PhaseLoad {
			phase = p.Phase
		}
	}
	mlx.ResetPeakMemory()
	_, err := m.run.Generate(make([]uint64, batch))
	return err
}
