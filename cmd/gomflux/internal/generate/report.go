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

// A generateReport reports how a run goes, as text or as JSON lines.
type generateReport interface {
	// start announces the next images of a prompt, which are generated at once. The
	// first has an index, from 0, among all images.
	start(seeds []uint64, index, images int, prompt string)
	// begin starts to show progress, with previews if the terminal is not nil.
	begin(ctx context.Context, previews *termpic.Terminal)
	// end stops showing progress.
	end()
	// progress shows the progress of loading or generating.
	progress(p gomflux.Progress)
	// preview shows how the image will look.
	preview(img image.Image)
	// saving announces that an image is being saved.
	saving(index int)
	// image reports a saved image, and returns the first error of writing.
	image(file string, layers []string, r *gomflux.Result, saveTime time.Duration) error
	// tensors reports saved tensors.
	tensors(t record.SavedTensors)
	// profile reports the result of --profile.
	profile(r profile.Report)
}

func newGenerateReport(out *ui.Output) generateReport {
	if out.Format == ui.JSONLines {
		return &jsonReport{out: out}
	}
	return &textReport{out: out}
}

// unreported returns the error of an image that is saved but was not reported.
func unreported(out *ui.Output, file string) error {
	err := out.Err()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s is saved, but writing to standard output failed: %w", file, oserr.Bare(err))
}

// A textReport reports to people.
type textReport struct {
	out   *ui.Output
	shown *ui.Progress
	batch int // images that are generated at once
}

func (r *textReport) start(seeds []uint64, index, images int, prompt string) {
	r.batch = len(seeds)
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
	}
}

func (r *textReport) begin(ctx context.Context, previews *termpic.Terminal) {
	r.shown = r.out.StartGeneration(ctx, previews, r.batch)
}

func (r *textReport) end() { r.shown.Close() }

func (r *textReport) progress(p gomflux.Progress) { r.shown.Report(p) }

func (r *textReport) preview(img image.Image) { r.shown.Preview(img) }

func (r *textReport) saving(int) { r.progress(gomflux.Progress{Phase: gomflux.PhaseSave}) }

func (r *textReport) image(file string, layers []string, result *gomflux.Result, saveTime time.Duration) error {
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
		r.out.Wrote(r.out.Line(name))
	}
	return unreported(r.out, file)
}

func (r *textReport) tensors(t record.SavedTensors) {
	switch text := t.Text(); {
	case text == "":
	case t.EndedAfter != "":
		r.out.Say("%s", text)
	default:
		r.out.Note("%s", text)
	}
}

func (r *textReport) profile(p profile.Report) {
	p.Note(r.out)
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
