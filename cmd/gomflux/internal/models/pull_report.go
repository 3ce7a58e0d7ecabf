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

// A pullReport reports how a download goes, as text or as JSON lines.
type pullReport interface {
	// start describes what will be downloaded, under which licence.
	start(plan *hub.Plan, licence *family.Licence)
	// begin starts to show progress, and returns a function that gets it, or nil.
	begin(plan *hub.Plan) func(hub.Progress)
	// end stops showing progress.
	end()
	// done reports the end of a download, and returns the first error of writing.
	done(p pulled) error
}

// A pulled is a model or file that is on this machine.
type pulled struct {
	repo, revision, commit string
	path                   string // of the folder, or of the file
	bytes                  int64  // of all files
	fetched                int64  // bytes that were missing
	took                   time.Duration
}

func newPullReport(out *ui.Output) pullReport {
	if out.Format == ui.JSONLines {
		return &jsonPullReport{out: out}
	}
	return &textPullReport{out: out}
}

// A textPullReport reports to people.
type textPullReport struct {
	out *ui.Output
	bar *ui.Bar
}

func (r *textPullReport) start(plan *hub.Plan, licence *family.Licence) {
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
}

func (r *textPullReport) begin(plan *hub.Plan) func(hub.Progress) {
	if !plan.Complete() {
		r.bar = r.out.StartBar("download", plan.Bytes)
	}
	if r.bar == nil {
		return nil
	}
	return func(p hub.Progress) { r.bar.Set(p.Here, downloadText(p)) }
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

func (r *textPullReport) end() { r.bar.Close() }

func (r *textPullReport) done(p pulled) error {
	if p.fetched > 0 {
		perSecond := int64(float64(p.fetched) / max(p.took.Seconds(), 1e-3))
		r.out.Note("downloaded %s in %s, %s/s", units.Bytes(p.fetched), ui.Duration(p.took), units.Bytes(perSecond))
	}
	return r.out.Line(p.path)
}

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
		MessageType    string  `json:"message_type"` // progress
		Bytes          int64   `json:"bytes"`
		TotalBytes     int64   `json:"total_bytes"`
		BytesPerSecond float64 `json:"bytes_per_second"`
		SecondsLeft    float64 `json:"seconds_left"`
		WaitingFor     string  `json:"waiting_for,omitempty"`
	}
	jsonPulled struct {
		MessageType  string  `json:"message_type"` // model
		Repo         string  `json:"repo"`
		Revision     string  `json:"revision"`
		Commit       string  `json:"commit"`
		Path         string  `json:"path"`
		Bytes        int64   `json:"bytes"`
		FetchedBytes int64   `json:"fetched_bytes"`
		Seconds      float64 `json:"seconds"`
	}
)

// A jsonPullReport reports to programs.
type jsonPullReport struct {
	out      *ui.Output
	reported time.Time
}

func (r *jsonPullReport) start(plan *hub.Plan, licence *family.Licence) {
	info := plan.Info
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

func (r *jsonPullReport) begin(*hub.Plan) func(hub.Progress) {
	return func(p hub.Progress) {
		if time.Since(r.reported) < time.Second/2 && p.Here < p.Bytes {
			return
		}
		r.reported = time.Now()
		r.out.Event(jsonPullProgress{
			MessageType: "progress", Bytes: p.Here, TotalBytes: p.Bytes, BytesPerSecond: p.PerSecond,
			SecondsLeft: ui.Seconds(p.Left), WaitingFor: p.Waiting,
		})
	}
}

func (r *jsonPullReport) end() {}

func (r *jsonPullReport) done(p pulled) error {
	r.out.Event(jsonPulled{
		MessageType: "model", Repo: p.repo, Revision: p.revision, Commit: p.commit, Path: p.path,
		Bytes: p.bytes, FetchedBytes: p.fetched, Seconds: ui.Seconds(p.took),
	})
	return r.out.Err()
}
