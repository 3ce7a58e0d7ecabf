package generate

import (
	"context"
	"image"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/picture"
)

// The lines of generate --json. Fields are only ever added.
type (
	JSONProgress struct {
		MessageType    string  `json:"message_type"` // progress
		Phase          string  `json:"phase"`
		Component      string  `json:"component,omitempty"`
		Bytes          int64   `json:"bytes,omitempty"`
		TotalBytes     int64   `json:"total_bytes,omitempty"`
		Step           int     `json:"step,omitempty"` // steps done
		Steps          int     `json:"steps,omitempty"`
		SecondsPerStep float64 `json:"seconds_per_step,omitempty"`
		SecondsLeft    float64 `json:"seconds_left,omitempty"` // of the steps
		Index          *int    `json:"index,omitempty"`        // of the image, left out while loading
		Count          int     `json:"count,omitempty"`        // images that are generated at once, from index on
	}
	JSONStart struct {
		MessageType string `json:"message_type"` // start
		Seed        uint64 `json:"seed"`
		Index       int    `json:"index"` // from 0
		Pictures    int    `json:"pictures"`
	}
	JSONPicture struct {
		MessageType string            `json:"message_type"` // picture
		File        string            `json:"file"`
		Settings    *picture.Settings `json:"settings"`
		Seconds     JSONSeconds       `json:"seconds"`
		PeakMemory  int               `json:"peak_memory_bytes"`
		Estimated   int64             `json:"estimated_memory_bytes"`
		Layers      []string          `json:"layers,omitempty"` // files of the layers, the lowest first
		Width       int               `json:"width"`            // of the file
		Height      int               `json:"height"`
		Transparent bool              `json:"transparent,omitempty"`

		PromptTokens int `json:"prompt_tokens"`
		TextTokens   int `json:"text_tokens"`
		CutTokens    int `json:"cut_tokens,omitempty"`

		Skipped         []int `json:"skipped_steps,omitempty"`
		SkippedNegative []int `json:"skipped_negative_steps,omitempty"`

		PromptCached bool `json:"prompt_cached,omitempty"`
	}
	JSONSeconds struct {
		Encode float64 `json:"encode"`
		Steps  float64 `json:"steps"`
		Decode float64 `json:"decode"`
		Save   float64 `json:"save"`
	}
)

// A jsonReport reports to programs.
type jsonReport struct {
	out      *ui.Output
	clock    ui.StepClock
	last     gomflux.Progress // the last reported progress
	reported time.Time        // when it was reported
	index    *int             // of the first image of the batch, nil before
	batch    int              // images that are generated at once
	decoded  int              // how many of them are decoded, or being decoded
}

func (r *jsonReport) start(seeds []uint64, index, images int, _ string) {
	r.index, r.batch, r.decoded = &index, len(seeds), 0
	for i, seed := range seeds {
		r.out.Event(JSONStart{"start", seed, index + i, images})
	}
}

func (r *jsonReport) begin(context.Context, *termpic.Terminal) {
	r.clock, r.last = ui.StepClock{}, gomflux.Progress{}
}

func (r *jsonReport) end() {}

func (r *jsonReport) progress(p gomflux.Progress) {
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

func (r *jsonReport) preview(image.Image) {}

func (r *jsonReport) saving(index int) {
	r.index = &index
	r.progress(gomflux.Progress{Phase: gomflux.PhaseSave})
}

func (r *jsonReport) image(file string, layers []string, result *gomflux.Result, saveTime time.Duration) error {
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

func (r *jsonReport) tensors(t record.SavedTensors) { r.out.Event(t) }

func (r *jsonReport) profile(p profile.Report) { r.out.Event(p.JSON()) }
