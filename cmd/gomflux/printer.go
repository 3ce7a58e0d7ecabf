package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"syscall"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/picture"
)

// A printer says how a generation goes: in words and a changing line on
// standard error, or as lines of JSON on standard output.
type printer struct {
	stdout, stderr io.Writer
	json, quiet    bool
	verbose        bool
	preview, show  *termpic.Terminal // nil: pictures are not shown

	unwritten error // of standard output

	display *display
	clock   stepClock
	last    gomflux.Progress // of JSON, and when that was
	told    time.Time
	index   *int // of the picture that is made, or of the first of some
	atOnce  int  // how many are
	decoded int  // how many of them are decoded, or being so
}

// The lines of --json. Fields are only ever added.
type (
	jsonProgress struct {
		MessageType    string  `json:"message_type"` // progress
		Phase          string  `json:"phase"`
		Component      string  `json:"component,omitempty"`
		Bytes          int64   `json:"bytes,omitempty"`
		TotalBytes     int64   `json:"total_bytes,omitempty"`
		Step           int     `json:"step,omitempty"` // done
		Steps          int     `json:"steps,omitempty"`
		SecondsPerStep float64 `json:"seconds_per_step,omitempty"`
		SecondsLeft    float64 `json:"seconds_left,omitempty"` // of the steps
		Index          *int    `json:"index,omitempty"`        // of the picture, once one is begun
		Count          int     `json:"count,omitempty"`        // of the pictures from it on that are made at once
	}
	jsonStart struct {
		MessageType string `json:"message_type"` // start
		Seed        uint64 `json:"seed"`
		Index       int    `json:"index"` // from 0
		Pictures    int    `json:"pictures"`
	}
	jsonPicture struct {
		MessageType string            `json:"message_type"` // picture
		File        string            `json:"file"`
		Settings    *picture.Settings `json:"settings"`
		Seconds     jsonSeconds       `json:"seconds"`
		PeakMemory  int               `json:"peak_memory_bytes"`
		Estimated   int64             `json:"estimated_memory_bytes"`

		PromptTokens int `json:"prompt_tokens"`
		TextTokens   int `json:"text_tokens"`
		CutTokens    int `json:"cut_tokens,omitempty"`
	}
	jsonSeconds struct {
		Encode float64 `json:"encode"`
		Steps  float64 `json:"steps"`
		Decode float64 `json:"decode"`
		Save   float64 `json:"save"`
	}
	jsonMessage struct {
		MessageType string `json:"message_type"` // warning or error
		Message     string `json:"message"`
		ExitCode    int    `json:"exit_code,omitempty"`
	}
)

// milliseconds are seconds without digits that mean nothing.
func milliseconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

func (p *printer) line(v any) {
	p.wrote(writeJSON(p.stdout, v))
}

// wrote keeps the first error of writing to standard output. A pipe that nobody
// reads any more is none: the files are what is wanted.
func (p *printer) wrote(err error) {
	if p.unwritten == nil && !errors.Is(err, syscall.EPIPE) {
		p.unwritten = err
	}
}

// openTerminals finds out how the terminal shows previews and results; "" is
// not at all.
func (p *printer) openTerminals(ctx context.Context, preview, show termpic.Protocol) {
	if p.json {
		return
	}
	if preview != "" {
		p.preview = termpic.Open(ctx, p.stderr, preview)
	}
	switch show {
	case "":
	case preview:
		p.show = p.preview
	default:
		p.show = termpic.Open(ctx, p.stderr, show)
	}
}

// begin starts to show progress, until end.
func (p *printer) begin(ctx context.Context) {
	p.display, p.clock, p.last = &display{}, stepClock{}, gomflux.Progress{}
	if !p.json && (!p.quiet || p.preview != nil) {
		p.display = newDisplay(ctx, p.stderr, p.preview)
		p.display.atOnce = p.atOnce
	}
}

func (p *printer) end() {
	if p.display != nil {
		p.display.close()
	}
}

func (p *printer) progress(pr gomflux.Progress) {
	if !p.json {
		p.display.report(pr)
		return
	}
	m := jsonProgress{
		MessageType: "progress", Phase: string(pr.Phase), Component: pr.Component, Bytes: pr.Bytes, TotalBytes: pr.TotalBytes, Step: pr.Step, Steps: pr.Steps, Index: p.index,
	}
	switch {
	case p.atOnce < 2 || pr.Phase == gomflux.PhaseSave:
	case pr.Phase == gomflux.PhaseDecode: // one after the other
		index := *p.index + p.decoded
		m.Index = &index
		p.decoded++
	default:
		m.Count = p.atOnce
	}
	if pr.Phase == gomflux.PhaseLoad && pr.Component == p.last.Component && pr.Bytes < pr.TotalBytes && time.Since(p.told) < time.Second/2 {
		return
	}
	p.last, p.told = pr, time.Now()
	if pr.Phase == gomflux.PhaseStep {
		p.clock.done(pr.Step, pr.Steps, time.Now())
		per := p.clock.perStep()
		m.SecondsPerStep, m.SecondsLeft = milliseconds(per), milliseconds(per*time.Duration(pr.Steps-pr.Step))
	}
	p.line(m)
}

// saving says that a picture is saved.
func (p *printer) saving(index int) {
	p.index = &index
	p.progress(gomflux.Progress{Phase: gomflux.PhaseSave})
}

// showPreview shows how the picture will look.
func (p *printer) showPreview(img image.Image) { p.display.picture(img) }

func (p *printer) warn(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if p.json {
		p.line(jsonMessage{MessageType: "warning", Message: message})
		return
	}
	warnings{above{p.display, p.stderr}}.warn("%s", message)
}

// start says which pictures are made next, from what seeds, and of what prompt
// where there are several.
func (p *printer) start(seeds []uint64, index, pictures int, prompt string) {
	p.index, p.atOnce, p.decoded = &index, len(seeds), 0
	for i, seed := range seeds {
		p.startOne(seed, index+i, pictures, prompt)
	}
}

func (p *printer) startOne(seed uint64, index, pictures int, prompt string) {
	if p.json {
		p.line(jsonStart{"start", seed, index, pictures})
		return
	}
	line := fmt.Sprintf("seed %d", seed)
	if pictures > 1 {
		line += fmt.Sprintf(" (%d of %d)", index+1, pictures)
	}
	if prompt != "" {
		const most = 60 // characters
		if text := []rune(prompt); len(text) > most {
			prompt = string(text[:most]) + "..."
		}
		line += ": " + quote.Printable(prompt)
	}
	fmt.Fprintln(p.stderr, line)
}

// picture says that one is there.
func (p *printer) picture(file string, r *gomflux.Result, save time.Duration) error {
	if p.json {
		p.line(jsonPicture{"picture", file, &r.Settings, jsonSeconds{
			milliseconds(r.EncodeTime), milliseconds(r.StepTime), milliseconds(r.DecodeTime), milliseconds(save),
		}, r.PeakMemory, r.EstimatedMemory, r.PromptTokens, r.TextTokens, r.CutTokens})
		return p.unprinted(file)
	}
	if !p.quiet {
		steps := "no steps" // where their result was given
		switch n := r.StepsRun; {
		case n == 1:
			steps = "1 step of " + seconds(r.StepTime)
		case n > 1:
			steps = fmt.Sprintf("%d steps of %s", n, seconds(r.StepTime/time.Duration(n)))
		}
		about := ""
		if r.Settings.Batch > 1 {
			about = fmt.Sprintf(", one of %d at once", r.Settings.Batch)
		}
		fmt.Fprintf(p.stderr, "%dx%d, %s, %s in all%s\n", r.Settings.Width, r.Settings.Height, steps, seconds(r.EncodeTime+r.StepTime+r.DecodeTime+save), about)
	}
	if p.verbose {
		fmt.Fprintf(p.stderr, "encode %s (%s), steps %s, decode %s, save %s, peak memory %s\n",
			seconds(r.EncodeTime), tokensText(r), seconds(r.StepTime), seconds(r.DecodeTime), seconds(save), units.Bytes(int64(r.PeakMemory)))
	}
	_, err := fmt.Fprintln(p.stdout, file)
	p.wrote(err)
	return p.unprinted(file)
}

// tokensText says how long the prompt is.
func tokensText(r *gomflux.Result) string {
	text := fmt.Sprintf("%d tokens", r.PromptTokens)
	if r.TextTokens > r.PromptTokens {
		text += fmt.Sprintf(" of %d", r.TextTokens)
	}
	if r.CutTokens > 0 {
		text += fmt.Sprintf(", CLIP does not see the last %d", r.CutTokens)
	}
	return text
}

// unprinted is the error of a picture that is there but could not be told of.
func (p *printer) unprinted(file string) error {
	if p.unwritten == nil {
		return nil
	}
	return fmt.Errorf("%s is saved, but standard output cannot be written: %w", file, oserr.Bare(p.unwritten))
}

// failed says with --json how a run ended; the line on standard error comes
// from main.
func (p *printer) failed(err error) {
	if errors.Is(err, errInterrupted) {
		err = errInterrupted // without where that was
	}
	if p.json && err != nil {
		p.line(jsonMessage{"error", err.Error(), exitCode(err)})
	}
}

// warnings go to a writer.
type warnings struct{ io.Writer }

func (w warnings) warn(format string, args ...any) {
	fmt.Fprintf(w, "gomflux: warning: %s\n", escaped(fmt.Sprintf(format, args...)))
}
