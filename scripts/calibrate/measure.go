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
	// trial has the constants that are tried, by class; other classes use their own.
	trial   map[*component.Class]component.BlockMemory
	weights int // memory of the weights, in bytes
	prompts int // number of prompts so far
}

// blocks is models.LoadOptions.BlockMemory.
func (b *bench) blocks(c component.Component) component.BlockMemory {
	if s, ok := b.trial[c.Class]; ok {
		return s
	}
	return c.Blocks()
}

// A measured is a run with the peak memory of each of its phases, in bytes.
type measured struct {
	name  string
	run   *models.Run
	peaks map[models.Phase]int
}

// phaseOf returns the phase in which a component runs.
func phaseOf(c component.Component) models.Phase {
	if c.Class.Role == component.Transformer {
		return models.PhaseStep
	}
	return models.PhaseEncode
}

// off returns the relative errors of the estimates of all runs with some constants.
func (b *bench) off(c component.Component, s component.BlockMemory, runs []*measured) (errors []float64) {
	b.trial[c.Class] = s
	defer delete(b.trial, c.Class)
	for _, m := range runs {
		e, phase := m.run.Estimate(), phaseOf(c)
		estimated := map[models.Phase]int64{models.PhaseStep: e.Step, models.PhaseEncode: e.Encode}[phase]
		errors = append(errors, float64(estimated)/float64(m.peaks[phase])-1)
	}
	return errors
}

// settled frees unused arrays and returns the memory in use, in bytes.
func settled() int {
	runtime.GC()
	mlx.StopPoint()
	mlx.ClearCache()
	time.Sleep(20 * time.Millisecond) // CUDA frees a moment later
	return mlx.ActiveMemory()
}

// A setting has the parameters in which runs differ.
type setting struct{ side, batch, tokens int }

// maxSideOnCPU is the largest default side of images on the CPU, which is slow.
const maxSideOnCPU = 256

// settings returns all sizes with all batches of at most as many pixels as the largest size, with
// the longest prompt, and the smallest size with shorter prompts.
func (b *bench) settings(o options) (all []setting) {
	multiple := b.Multiple()
	sizes := o.sizes
	if len(sizes) == 0 {
		own := max(b.Defaults.Width, b.Defaults.Height)
		if b.Device() == mlx.CPU {
			own = min(own, maxSideOnCPU)
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

// measure measures runs with all settings.
func (b *bench) measure(o options) (all []*measured, err error) {
	settings := b.settings(o)
	for i, s := range settings {
		m := &measured{name: fmt.Sprintf("%dx%d, batch %d, prompt of %d", s.side, s.side, s.batch, s.tokens), peaks: map[models.Phase]int{}}
		fmt.Fprintf(os.Stderr, "%d of %d: %s\n", i+1, len(settings), m.name)
		repeats := map[models.Phase][]int{}
		for range o.repeats {
			var peaks map[models.Phase]int
			if m.run, err = b.prepare(s); err == nil {
				peaks, err = b.generate(m.run, s.batch)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			for phase, n := range peaks {
				repeats[phase] = append(repeats[phase], n)
			}
		}
		for phase, peaks := range repeats { // the median, or the lower one of two
			slices.Sort(peaks)
			m.peaks[phase] = peaks[(len(peaks)-1)/2]
		}
		all = append(all, m)
	}
	return all, nil
}

// prompt returns a prompt of n words, which repeats eight words. Each call begins with another
// word, since encodings of recent prompts are cached, and the number of tokens must stay the same.
func (b *bench) prompt(n int) string {
	words := strings.Fields("red blue green black white grey brown pink")
	var text []string
	for i := range n {
		text = append(text, words[(b.prompts+i)%len(words)])
	}
	b.prompts++
	return strings.Join(text, " ")
}

// prepare prepares a run of one step. An edit model gets a reference image.
func (b *bench) prepare(s setting) (*models.Run, error) {
	r := models.Request{
		Prompt: b.prompt(s.tokens), Height: s.side, Width: s.side, Steps: 1, Guidance: b.Defaults.Guidance, MaxSequenceLength: s.tokens,
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

// generate runs and returns the peak memory of each phase but the last, in bytes.
func (b *bench) generate(run *models.Run, batch int) (map[models.Phase]int, error) {
	peaks, phase := map[models.Phase]int{}, models.PhaseEncode
	kept := settled() - b.weights // by earlier runs
	run.Progress = func(p models.Progress) {
		peaks[phase] = max(peaks[phase], mlx.PeakMemory()-kept)
		mlx.ResetPeakMemory()
		if p.Phase != models.PhaseLoad {
			phase = p.Phase
		}
	}
	defer func() { run.Progress = nil }()
	_, err := run.Generate(make([]uint64, batch))
	return peaks, err
}
