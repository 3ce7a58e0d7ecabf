package generate

import (
	"context"
	"fmt"
	"image"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
)

// A report reports how a run goes, as text or as JSON lines.
type report struct {
	out   *ui.Output
	shown *ui.Progress // of text
	batch int          // images that are generated at once

	// of JSON lines
	clock    ui.StepClock
	last     gomflux.Progress // the last reported progress
	reported time.Time        // when it was reported
	index    *int             // of the first image of the batch, nil before
	decoded  int              // how many of the batch are decoded, or being decoded
}

// unreported returns the error of an image that is saved but was not reported.
func unreported(out *ui.Output, file string) error {
	err := out.Err()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s is saved, but writing to standard output failed: %w", file, oserr.Bare(err))
}

// start announces the next images of a prompt, which are generated at once. The first
// has an index, from 0, among all images.
func (r *report) start(seeds []uint64, index, images int, prompt string) {
	r.index, r.batch, r.decoded = &index, len(seeds), 0
	for i, seed := range seeds {
		line := fmt.Sprintf("seed %d", seed)
		if images > 1 {
			line += fmt.Sprintf(" (%d of %d)", index+i+1, images)
		}
		if prompt != "" {
			const most = 60 // characters
			if text := []rune(prompt); len(text) > most {
				prompt = string(text[:most]) + "..."
			}
			line += ": " + quote.Printable(prompt)
		}
		r.out.Say("%s", line)
		r.out.Event(JSONStart{"start", seed, index + i, images})
	}
}

// begin starts to show progress, with previews if the terminal is not nil.
func (r *report) begin(ctx context.Context, previews *termpic.Terminal) {
	r.shown = r.out.StartGeneration(ctx, previews, r.batch)
	r.clock, r.last = ui.StepClock{}, gomflux.Progress{}
}

// end stops showing progress.
func (r *report) end() { r.shown.Close() }

// progress shows the progress of loading or generating.
func (r *report) progress(p gomflux.Progress) {
	r.shown.Report(p)
	m := JSONProgress{
		MessageType: "progress", Phase: string(p.Phase), Component: p.Component, Bytes: p.Bytes, TotalBytes: p.TotalBytes,
		Step: p.Step, Steps: p.Steps, Index: r.index,
	}
	switch {
	case r.batch < 2 || p.Phase == gomflux.PhaseSave:
	case p.Phase == gomflux.PhaseDecode: // one image after the other
		index := *r.index + r.decoded
		m.Index = &index
		r.decoded++
	default:
		m.Count = r.batch
	}
	loading := p.Phase == gomflux.PhaseLoad && p.Component == r.last.Component && p.Bytes < p.TotalBytes
	if loading && time.Since(r.reported) < time.Second/2 {
		return
	}
	r.last, r.reported = p, time.Now()
	if p.Phase == gomflux.PhaseStep {
		r.clock.Done(p.Step, p.Steps, time.Now())
		per := r.clock.PerStep()
		m.SecondsPerStep, m.SecondsLeft = ui.Seconds(per), ui.Seconds(per*time.Duration(p.Steps-p.Step))
	}
	r.out.Event(m)
}

// saving announces that an image is being saved.
func (r *report) saving(index int) {
	r.index = &index
	r.progress(gomflux.Progress{Phase: gomflux.PhaseSave})
}

// image reports a saved image, and returns the first error of writing.
func (r *report) image(file string, layers []string, result *gomflux.Result, saveTime time.Duration) error {
	steps := "no steps" // if their result was replaced
	switch n := result.StepsRun; {
	case n == 1:
		steps = "1 step of " + ui.Duration(result.StepTime)
	case n > 1:
		steps = fmt.Sprintf("%d steps of %s", n, ui.Duration(result.StepTime/time.Duration(n)))
	}
	if result.Settings.StepCache != "" {
		steps += ", " + cli.SkippedText(result.SkippedSteps, result.SkippedNegativeSteps)
	}
	batch := ""
	if result.Settings.Batch > 1 {
		batch = fmt.Sprintf(", one of %d at once", result.Settings.Batch)
	}
	total := result.EncodeTime + result.StepTime + result.DecodeTime + saveTime
	r.out.Note("%s, %s, %s in all%s", sizeText(result), steps, ui.Duration(total), batch)
	if r.out.Verbose {
		r.out.Say("encode %s (%s), steps %s, decode %s, save %s, peak memory %s",
			ui.Duration(result.EncodeTime), tokensText(result), ui.Duration(result.StepTime), ui.Duration(result.DecodeTime),
			ui.Duration(saveTime), units.Bytes(int64(result.PeakMemory)))
	}
	for _, name := range append([]string{file}, layers...) {
		if r.out.Format == ui.Text {
			r.out.Wrote(r.out.Line(name))
		}
	}
	r.out.Event(JSONPicture{
		MessageType: "picture", File: file, Layers: layers, Settings: &result.Settings,
		Seconds: JSONSeconds{
			ui.Seconds(result.EncodeTime), ui.Seconds(result.StepTime), ui.Seconds(result.DecodeTime), ui.Seconds(saveTime),
		},
		PeakMemory: result.PeakMemory, Estimated: result.EstimatedMemory,
		Width: result.Image.Rect.Dx(), Height: result.Image.Rect.Dy(),
		Transparent:  result.Transparent != nil && !isJPEG(file),
		PromptTokens: result.PromptTokens, TextTokens: result.TextTokens, CutTokens: result.CutTokens,
		Skipped: result.SkippedSteps, SkippedNegative: result.SkippedNegativeSteps,
		PromptCached: result.PromptCached,
	})
	return unreported(r.out, file)
}

// tensors reports saved tensors.
func (r *report) tensors(t record.SavedTensors) {
	switch text := t.Text(); {
	case text == "":
	case t.EndedAfter != "":
		r.out.Say("%s", text)
	default:
		r.out.Note("%s", text)
	}
	r.out.Event(t)
}

// profile reports the result of --profile.
func (r *report) profile(p profile.Report) {
	p.Note(r.out)
	r.out.Event(p.JSON())
}

// sizeText returns the size of an image, and the one in which the model has computed it.
func sizeText(r *gomflux.Result) string {
	size, computed := r.Image.Rect.Size(), image.Pt(r.Settings.Width, r.Settings.Height)
	if size == computed {
		return fmt.Sprintf("%dx%d", size.X, size.Y)
	}
	return fmt.Sprintf("%dx%d, computed at %dx%d", size.X, size.Y, computed.X, computed.Y)
}

// tokensText returns the length of the prompt in words.
func tokensText(r *gomflux.Result) string {
	text := fmt.Sprintf("%d tokens", r.PromptTokens)
	if r.TextTokens > r.PromptTokens {
		text += fmt.Sprintf(" of %d", r.TextTokens)
	}
	if r.CutTokens > 0 {
		text += fmt.Sprintf(", CLIP does not see the last %d", r.CutTokens)
	}
	if r.PromptCached {
		text += ", cached"
	}
	return text
}
