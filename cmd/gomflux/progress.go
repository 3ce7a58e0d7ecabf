package main

import (
	"context"
	"fmt"
	"image"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
)

// A display shows how far a run is, on one line that changes, and above it a
// picture that does.
type display struct {
	bars *mpb.Progress // nil: nothing is shown
	stop func() bool   // ends the wait for an interruption
	bar  *mpb.Bar
	last gomflux.Progress

	atOnce int // pictures, 0 for one

	mu    sync.Mutex // the line is drawn on a goroutine of its own
	steps stepClock

	pictures sync.Mutex       // an interruption may come while one is drawn
	preview  *termpic.Preview // nil: none is shown, or no longer
	next     time.Time        // before that no other is
}

// redraw is how often the display changes, pictures included.
const redraw = 150 * time.Millisecond

// newDisplay shows nothing unless w is a terminal, and pictures if it is given
// one that can; nil is none. Someone there who interrupts the run is told that
// it takes a moment.
func newDisplay(ctx context.Context, w io.Writer, pictures *termpic.Terminal) *display {
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return &display{}
	}
	d := &display{bars: mpb.New(mpb.WithOutput(w), mpb.WithWidth(24), mpb.WithRefreshRate(redraw))}
	if pictures != nil {
		d.preview = pictures.NewPreview()
	}
	bars := d.bars
	d.stop = context.AfterFunc(ctx, func() {
		d.clearPicture(bars)
		// the terminal has written ^C into the line
		fmt.Fprint(bars, "\r\x1b[J", "stopping when what is being computed is done (Ctrl-C again stops at once)\n")
	})
	return d
}

// picture shows how the result will look, above the line, in the place of the
// picture before. Pictures that come faster than the display changes are left
// out, as are those that would make it take more than a fifth of the time.
func (d *display) picture(m image.Image) {
	d.pictures.Lock()
	defer d.pictures.Unlock()
	start := time.Now()
	if d.bars == nil || d.preview == nil || start.Before(d.next) {
		return
	}
	text, err := d.preview.Draw(m)
	if err != nil {
		return // a picture that cannot be shown is no reason to end the run
	}
	// mpb writes it where its line begins
	io.WriteString(d.bars, text)
	took := time.Since(start)
	d.next = start.Add(took + max(redraw, 4*took))
}

// clearPicture removes the picture for good.
func (d *display) clearPicture(bars *mpb.Progress) {
	d.pictures.Lock()
	defer d.pictures.Unlock()
	if d.preview != nil {
		io.WriteString(bars, d.preview.Clear())
		d.preview = nil
	}
}

// above writes lines that are to stay. While the display shows something they
// go above it: it would be drawn over what comes below.
type above struct {
	display *display // nil: there is none
	w       io.Writer
}

func (a above) Write(b []byte) (int, error) {
	d := a.display
	if d == nil || d.bars == nil {
		return a.w.Write(b)
	}
	d.pictures.Lock()
	defer d.pictures.Unlock()
	if d.preview != nil {
		io.WriteString(d.bars, d.preview.Clear()) // the next one is drawn below
	}
	return d.bars.Write(b)
}

// report takes what Open and Generate report.
func (d *display) report(p gomflux.Progress) {
	started := p.Phase != d.last.Phase || p.Component != d.last.Component
	d.last = p
	d.mu.Lock()
	if p.Phase == gomflux.PhaseStep {
		if started {
			d.steps = stepClock{}
		}
		d.steps.done(p.Step, p.Steps, time.Now())
	}
	d.mu.Unlock()
	if d.bars == nil {
		return
	}
	if started {
		d.start(p)
	}
	if d.bar == nil {
		return // the terminal is gone
	}
	switch {
	case p.TotalBytes > 0:
		d.bar.SetCurrent(p.Bytes)
	case p.Phase == gomflux.PhaseStep:
		d.bar.SetCurrent(int64(p.Step))
	}
}

// loading takes how much of a component is read.
func (d *display) loading(component string, done, total int64) {
	d.report(gomflux.Progress{Phase: gomflux.PhaseLoad, Component: component, Bytes: done, TotalBytes: total})
}

// start puts the line of a phase in the place of the one before it.
func (d *display) start(p gomflux.Progress) {
	if d.bar != nil {
		d.bar.Abort(true)
		d.bar.Wait()
	}
	// a bar that is full ends itself, so totals are one more than there is
	total := int64(1)
	filler := mpb.BarStyle().Build()
	var left, right decor.DecorFunc
	switch {
	case p.TotalBytes > 0: // what is loaded, or saved of a model
		total += p.TotalBytes
		left = func(decor.Statistics) string { return string(p.Phase) + " " + p.Component }
		right = func(s decor.Statistics) string {
			return fmt.Sprintf("%s of %s", units.Bytes(s.Current), units.Bytes(p.TotalBytes))
		}
	case p.Phase == gomflux.PhaseStep:
		total += int64(p.Steps)
		left = func(s decor.Statistics) string {
			text := fmt.Sprintf("step %d/%d", min(s.Current+1, int64(p.Steps)), p.Steps)
			if d.atOnce > 1 {
				text += fmt.Sprintf(" of %d pictures", d.atOnce)
			}
			return text
		}
		right = func(decor.Statistics) string {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.steps.text(time.Now())
		}
	default:
		filler = mpb.NopStyle().Build()
		start := time.Now()
		left = func(decor.Statistics) string { return fmt.Sprintf("%s %.0f s", p.Phase, time.Since(start).Seconds()) }
		right = func(decor.Statistics) string { return "" }
	}
	d.bar, _ = d.bars.Add(total, filler, mpb.PrependDecorators(decor.Any(left)), mpb.AppendDecorators(decor.Any(right)))
}

// close removes the line and the picture.
func (d *display) close() {
	if d.bars == nil {
		return
	}
	d.stop()
	d.clearPicture(d.bars)
	if d.bar != nil {
		d.bar.Abort(true)
	}
	d.bars.Wait()
	d.bars = nil
}

// A stepClock knows how long a step takes.
type stepClock struct {
	step, steps int
	first, last time.Time // when the first and the latest reported step were done
	firstStep   int
}

func (c *stepClock) done(step, steps int, now time.Time) {
	if c.first.IsZero() {
		c.first, c.firstStep = now, step
	}
	c.step, c.steps, c.last = step, steps, now
}

// perStep is the mean of the steps seen, 0 where none was seen from its start.
func (c *stepClock) perStep() time.Duration {
	if c.step <= c.firstStep {
		return 0
	}
	return c.last.Sub(c.first) / time.Duration(c.step-c.firstStep)
}

func (c *stepClock) text(now time.Time) string {
	if c.first.IsZero() {
		return ""
	}
	per := c.perStep()
	if per == 0 {
		return fmt.Sprintf("%.0f s", now.Sub(c.first).Seconds())
	}
	left := max(0, time.Duration(c.steps-c.step)*per-now.Sub(c.last))
	return fmt.Sprintf("%s/step, %s left", seconds(per), seconds(left))
}

// seconds writes a duration as people say it: 0.31 s, 12.4 s, 3 min 20 s.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}
