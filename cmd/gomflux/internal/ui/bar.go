package ui

import (
	"context"
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
	progress *Progress
	text     atomic.Value
}

// StartBar shows a bar, unless the output is quiet, JSON or not a terminal: then
// it returns nil, whose methods do nothing.
func (o *Output) StartBar(label string, total int64) *Bar {
	if o.Format != Text || o.Quiet || !IsTerminal(o.Stderr) {
		return nil
	}
	b := &Bar{progress: newProgress(context.Background(), o.Stderr, nil, 1)}
	b.text.Store("")
	b.progress.show(total, mpb.BarStyle().Build(), func(decor.Statistics) string { return label },
		func(decor.Statistics) string { return b.text.Load().(string) })
	return b
}

// Set shows how much is done, and a text after the bar.
func (b *Bar) Set(done int64, text string) {
	if b != nil && b.progress.bar != nil {
		b.text.Store(text)
		b.progress.bar.SetCurrent(done)
	}
}

// Close removes the bar.
func (b *Bar) Close() {
	if b != nil {
		b.progress.Close()
	}
}
