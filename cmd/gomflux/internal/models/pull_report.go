package models

import (
	"fmt"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/family"
)

// The lines of pull --json. Fields are only ever added.
type (
	jsonPullStart struct {
		MessageType string `json:"message_type"` // start
		Repo        string `json:"repo"`
		Revision    string `json:"revision"`
		Commit      string `json:"commit"`
		family.Licence
		Gated     bool           `json:"gated"`
		Files     []jsonPullFile `json:"files"`
		Bytes     int64          `json:"bytes"`
		BytesHere int64          `json:"bytes_here"`
	}
	jsonPullFile struct {
		Path  string `json:"path"`
		Bytes int64  `json:"bytes"`
	}
	jsonPullProgress struct {
		MessageType string `json:"message_type"` // progress
		hub.Progress
		SecondsLeft float64 `json:"seconds_left"`
	}
	// A pulled is a model or file that is on this machine.
	pulled struct {
		MessageType string  `json:"message_type"` // model
		Repo        string  `json:"repo"`
		Revision    string  `json:"revision"`
		Commit      string  `json:"commit"`
		Path        string  `json:"path"`          // of the folder, or of the file
		Bytes       int64   `json:"bytes"`         // of all files
		Fetched     int64   `json:"fetched_bytes"` // bytes that were missing
		Seconds     float64 `json:"seconds"`

		took time.Duration
	}
)

// A pullReport reports how a download goes, as text or as JSON lines.
type pullReport struct {
	out      *ui.Output
	bar      *ui.Bar   // of text
	reported time.Time // when the last JSON line about the progress was written
}

// start describes what will be downloaded, under which licence.
func (r *pullReport) start(plan *hub.Plan, licence *family.Licence) {
	info := plan.Info
	text := fmt.Sprintf("%s@%s (%.12s): %s, %s", info.Repo, info.Revision, info.Commit,
		ui.Plural(len(plan.Files), "file"), units.Bytes(plan.Bytes))
	if plan.Here > 0 {
		text += fmt.Sprintf(", %s already downloaded", units.Bytes(plan.Here))
	}
	if licence.Name != "" {
		text += "; licence " + quote.Printable(licence.Name)
	}
	if info.Gated {
		text += "; gated"
	}
	r.out.Note("%s", text)
	line := jsonPullStart{
		MessageType: "start", Repo: info.Repo, Revision: info.Revision, Commit: info.Commit, Licence: *licence,
		Gated: info.Gated,
		Bytes: plan.Bytes, BytesHere: plan.Here,
	}
	for _, f := range plan.Files {
		line.Files = append(line.Files, jsonPullFile{f.Path, f.Size})
	}
	r.out.Event(line)
}

// begin starts to show progress.
func (r *pullReport) begin(plan *hub.Plan) {
	if !plan.Complete() {
		r.bar = r.out.StartBar("download", plan.Bytes)
	}
}

// progress shows the progress.
func (r *pullReport) progress(p hub.Progress) {
	r.bar.Set(p.Here, downloadText(p))
	if time.Since(r.reported) < time.Second/2 && p.Here < p.Bytes {
		return
	}
	r.reported = time.Now()
	r.out.Event(jsonPullProgress{MessageType: "progress", Progress: p, SecondsLeft: ui.Seconds(p.Left)})
}

// downloadText returns the text after the bar.
func downloadText(p hub.Progress) string {
	text := fmt.Sprintf("%s of %s", units.Bytes(p.Here), units.Bytes(p.Bytes))
	if p.PerSecond > 0 {
		text += fmt.Sprintf(", %s/s", units.Bytes(int64(p.PerSecond)))
	}
	if p.Left > 0 {
		text += fmt.Sprintf(", %s left", ui.Duration(p.Left))
	}
	if p.Waiting != "" {
		text += ", waiting for another process"
	}
	return text
}

// done reports the end of a download, and returns the first error of writing.
func (r *pullReport) done(p pulled) error {
	if p.Fetched > 0 {
		perSecond := int64(float64(p.Fetched) / max(p.took.Seconds(), 1e-3))
		r.out.Note("downloaded %s in %s, %s/s", units.Bytes(p.Fetched), ui.Duration(p.took), units.Bytes(perSecond))
	}
	p.MessageType, p.Seconds = "model", ui.Seconds(p.took)
	if r.out.Event(p); r.out.Format == ui.Text {
		return r.out.Line(p.Path)
	}
	return r.out.Err()
}
