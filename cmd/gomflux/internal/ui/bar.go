package ui

import (
	"io"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// newBars returns a container of bars on a terminal.
func newBars(w io.Writer) *mpb.Progress {
	return mpb.New(mpb.WithOutput(w), mpb.WithWidth(24), mpb.WithRefreshRate(redraw))
}

// A Bar is a line of a terminal that shows how much of something is done.
type Bar struct {
	bars *mpb.Progress
	bar  *mpb.Bar // nil if the terminal is gone
	text atomic.Value
}

// StartBar shows a bar, unless the output is quiet, JSON or not a terminal: then
// it returns nil, whose methods do nothing.
func (o *Output) StartBar(label string, total int64) *Bar {
	if o.Format != Text || o.Quiet || !IsTerminal(o.Stderr) {
		return nil
	}
	b := &Bar{bars: newBars(o.Stderr)}
	b.text.Store("")
	left := decor.Any(func(decor.Statistics) string { return label })
	right := decor.Any(func(decor.Statistics) string { return b.text.Load().(string) })
	// a bar that is full ends itself, so the total is one more
	b.bar, _ = b.bars.Add(total+1, mpb.BarStyle().Build(), mpb.PrependDecorators(left), mpb.AppendDecorators(right))
	return b
}

// Set shows how much is done, and a text after the bar.
func (b *Bar) Set(done int64, text string) {
	if b != nil && b.bar != nil {
		b.text.Store(text)
		b.bar.SetCurrent(done)
	}
}

// Close removes the bar.
func (b *Bar) Close() {
	if b == nil || b.bars == nil {
		return
	}
	if b.bar != nil {
		b.bar.Abort(true)
	}
	b.bars.Wait()
	b.bars = nil
}
