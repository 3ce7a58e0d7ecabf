package ui

import (
	"context"
	"fmt"
	"image"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
)

// A Progress shows how far a run is, on one line of a terminal that changes, and
// above it a preview image.
type Progress struct {
	bars *mpb.Progress // nil: nothing is shown
	stop func() bool   // stops waiting for an interruption
	bar  *mpb.Bar
	last gomflux.Progress

	images int // how many are generated at once

	mu    sync.Mutex // guards steps: the line is drawn on a goroutine of its own
	steps StepClock

	previews sync.Mutex       // guards preview: an interruption may come while one is drawn
	preview  *termpic.Preview // nil: previews are not shown, or no longer
	next     time.Time        // the earliest time of the next preview
}

// redraw is how often the line changes, and the preview at most.
const redraw = 150 * time.Millisecond

// StartProgress shows progress until it is closed, unless the output is JSON,
// quiet or not a terminal.
func (o *Output) StartProgress(ctx context.Context) *Progress { return o.StartGeneration(ctx, nil, 1) }

// StartGeneration is StartProgress for a run that generates some images at once,
// with previews if the terminal shows images (nil: it does not). Previews are
// shown by a quiet output too.
func (o *Output) StartGeneration(ctx context.Context, previews *termpic.Terminal, images int) *Progress {
	p := &Progress{}
	if o.Format == Text && (!o.Quiet || previews != nil) {
		p = newProgress(ctx, o.Stderr, previews, images)
	}
	o.progress = p
	return p
}

// newProgress returns a Progress that shows nothing unless w is a terminal. It
// tells a user who interrupts the run that stopping takes a moment.
func newProgress(ctx context.Context, w io.Writer, previews *termpic.Terminal, images int) *Progress {
	if !IsTerminal(w) {
		return &Progress{}
	}
	p := &Progress{bars: newBars(w), images: images}
	if previews != nil {
		p.preview = previews.NewPreview()
	}
	bars := p.bars
	p.stop = context.AfterFunc(ctx, func() {
		p.clearPreview(bars)
		// the terminal has written ^C into the line
		fmt.Fprint(bars, "\r\x1b[J", "stopping after the current computation (press Ctrl-C again to stop at once)\n")
	})
	return p
}

// Preview shows how the image will look, above the line, in place of the preview
// before. It skips images that come faster than the line is redrawn, and images
// that would make previews take more than a fifth of the time.
func (p *Progress) Preview(m image.Image) {
	p.previews.Lock()
	defer p.previews.Unlock()
	start := time.Now()
	if p.bars == nil || p.preview == nil || start.Before(p.next) {
		return
	}
	text, err := p.preview.Draw(m)
	if err != nil {
		return // a preview that cannot be shown is no reason to end the run
	}
	// mpb writes it where its line begins
	io.WriteString(p.bars, text)
	took := time.Since(start)
	p.next = start.Add(took + max(redraw, 4*took))
}

// clearPreview removes the preview for good.
func (p *Progress) clearPreview(bars *mpb.Progress) {
	p.previews.Lock()
	defer p.previews.Unlock()
	if p.preview != nil {
		io.WriteString(bars, p.preview.Clear())
		p.preview = nil
	}
}

// above writes lines that stay. While progress is shown they go above it: it
// would be drawn over what comes below.
type above struct {
	progress *Progress // nil if there is no progress
	w        io.Writer
}

func (a above) Write(b []byte) (int, error) {
	p := a.progress
	if p == nil || p.bars == nil {
		return a.w.Write(b)
	}
	p.previews.Lock()
	defer p.previews.Unlock()
	if p.preview != nil {
		io.WriteString(p.bars, p.preview.Clear()) // the next one is drawn below
	}
	return p.bars.Write(b)
}

// Report shows what Open and Generate report.
func (p *Progress) Report(now gomflux.Progress) {
	started := now.Phase != p.last.Phase || now.Component != p.last.Component
	p.last = now
	p.mu.Lock()
	if now.Phase == gomflux.PhaseStep {
		if started {
			p.steps = StepClock{}
		}
		p.steps.Done(now.Step, now.Steps, time.Now())
	}
	p.mu.Unlock()
	if p.bars == nil {
		return
	}
	if started {
		p.start(now)
	}
	if p.bar == nil {
		return // the terminal is gone
	}
	switch {
	case now.TotalBytes > 0:
		p.bar.SetCurrent(now.Bytes)
	case now.Steps > 0:
		p.bar.SetCurrent(int64(now.Step))
	}
}

// Loading shows how many bytes of a component are read.
func (p *Progress) Loading(component string, done, total int64) {
	p.Report(gomflux.Progress{Phase: gomflux.PhaseLoad, Component: component, Bytes: done, TotalBytes: total})
}

// start replaces the line of the phase before by that of a new one.
func (p *Progress) start(now gomflux.Progress) {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bar.Wait()
	}
	total := int64(0)
	filler := mpb.BarStyle().Build()
	var left, right decor.DecorFunc
	switch {
	case now.TotalBytes > 0: // a component is loaded, or saved
		total = now.TotalBytes
		left = func(decor.Statistics) string { return string(now.Phase) + " " + now.Component }
		right = func(s decor.Statistics) string {
			return fmt.Sprintf("%s of %s", units.Bytes(s.Current), units.Bytes(now.TotalBytes))
		}
	case now.Phase == gomflux.PhaseUpscale:
		total = int64(now.Steps)
		left = func(decor.Statistics) string { return string(now.Phase) }
		right = func(s decor.Statistics) string { return fmt.Sprintf("%d%%", 100*s.Current/int64(now.Steps)) }
	case now.Phase == gomflux.PhaseStep:
		total = int64(now.Steps)
		left = func(s decor.Statistics) string {
			text := fmt.Sprintf("step %d/%d", min(s.Current+1, int64(now.Steps)), now.Steps)
			if p.images > 1 {
				text += fmt.Sprintf(" of %d images", p.images)
			}
			return text
		}
		right = func(decor.Statistics) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.steps.text(time.Now())
		}
	default:
		filler = mpb.NopStyle().Build()
		start := time.Now()
		left = func(decor.Statistics) string { return fmt.Sprintf("%s %.0f s", now.Phase, time.Since(start).Seconds()) }
		right = func(decor.Statistics) string { return "" }
	}
	p.show(total, filler, left, right)
}

// show adds a line. A bar that is full ends itself, so that its total is one more.
func (p *Progress) show(total int64, filler mpb.BarFiller, left, right decor.DecorFunc) {
	p.bar, _ = p.bars.Add(total+1, filler, mpb.PrependDecorators(decor.Any(left)), mpb.AppendDecorators(decor.Any(right)))
}

// Close removes the line and the preview.
func (p *Progress) Close() {
	if p == nil || p.bars == nil {
		return
	}
	p.stop()
	p.clearPreview(p.bars)
	if p.bar != nil {
		p.bar.Abort(true)
	}
	p.bars.Wait()
	p.bars = nil
}
