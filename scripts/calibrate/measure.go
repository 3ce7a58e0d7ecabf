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

// A measured is a run, and the most memory that each of its phases took.
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
		repeats := map[models.Phase][]int{}
		for range o.repeats {
			if m.run, err = b.prepare(s); err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			peaks, err := b.generate(m.run, s.batch)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			for phase, n := range peaks {
				repeats[phase] = append(repeats[phase], n)
			}
		}
		for phase, peaks := range repeats {
			m.peaks[phase] = median(peaks)
		}
		all = append(all, m)
	}
	return all, nil
}

// prompt is one of so many words, eight of them in turn. The next one begins with
// another word: encodings of the last prompts are kept, and as many tokens are wanted
// again.
func (b *bench) prompt(n int) string {
	words := strings.Fields("red blue green black white grey brown pink")
	var text []string
	for i := range n {
		text = append(text, words[(b.prompts+i)%len(words)])
	}
	b.prompts++
	return strings.Join(text, " ")
}

// prepare prepares a run of one step. A model that only edits is shown a picture.
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

// generate is the most memory that each phase of the run takes. The last one is not
// reported.
func (b *bench) generate(run *models.Run, batch int) (map[models.Phase]int, error) {
	peaks, phase := map[models.Phase]int{}, models.PhaseEncode
	kept := settled() - b.weights // of other runs
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

// median is that of numbers, of which it is the lower of two.
func median(list []int) int {
	return slices.Sorted(slices.Values(list))[(len(list)-1)/2]
}
