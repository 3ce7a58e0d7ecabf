package profile

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/profile"
)

// A Report is the result of --profile.
type Report struct {
	File    string // of the trace, "" if it was not written
	summary *profile.Summary
	partial bool // the run has failed
}

// profileRows and profileClasses are the numbers of modules and of their classes in the tables.
const profileRows, profileClasses = 25, 8

// The JSON line of a profile.
type (
	JSONLine struct {
		MessageType string              `json:"message_type"` // profile
		File        string              `json:"file,omitempty"`
		Partial     bool                `json:"partial,omitempty"`
		Overhead    float64             `json:"overhead_seconds"`
		Phases      []jsonProfilePhase  `json:"phases"`
		Steps       []jsonProfileTimes  `json:"steps"`
		Modules     []jsonProfileModule `json:"modules"`
	}
	jsonProfileTimes struct {
		Name      string  `json:"name"`
		Seconds   float64 `json:"seconds"`
		Evaluated float64 `json:"evaluated_seconds"`
		Host      float64 `json:"host_seconds"`
		Peak      int     `json:"peak_memory_bytes"`
	}
	jsonProfilePhase struct {
		jsonProfileTimes
		Self  float64 `json:"self_seconds"`
		Count int     `json:"count"`
	}
	jsonProfileModule struct {
		Name  string  `json:"name"`
		Class string  `json:"class,omitempty"`
		Phase string  `json:"phase"`
		Calls int     `json:"calls"`
		Self  float64 `json:"self_seconds"`
		Total float64 `json:"total_seconds"`
		Peak  int     `json:"peak_memory_bytes"`
		Shape []int   `json:"shape,omitempty"`
		Dtype string  `json:"dtype,omitempty"`
	}
)

// JSON returns the JSON line.
func (r Report) JSON() JSONLine {
	seconds := func(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }
	times := func(name string, t profile.Times, peak int) jsonProfileTimes {
		return jsonProfileTimes{name, seconds(t.Duration), seconds(t.Evaluated), seconds(t.Host), peak}
	}
	p := JSONLine{MessageType: "profile", File: r.File, Partial: r.partial, Overhead: seconds(r.summary.Overhead)}
	for _, phase := range r.summary.Phases {
		p.Phases = append(p.Phases, jsonProfilePhase{times(phase.Name, phase.Times, phase.Peak), seconds(phase.Self), phase.Count})
	}
	for _, s := range r.summary.Steps {
		p.Steps = append(p.Steps, times(s.Name, s.Times, s.Peak))
	}
	for _, m := range r.summary.Modules {
		p.Modules = append(p.Modules, jsonProfileModule{
			m.Name, m.Class, m.Phase, m.Calls, seconds(m.Self), seconds(m.Total), m.Peak, m.Shape, m.Dtype,
		})
	}
	return p
}

// Note writes the tables, and the name of the trace, for people.
func (r Report) Note(out *ui.Output) {
	for line := range strings.Lines(r.text()) {
		out.Note("%s", strings.TrimSuffix(line, "\n"))
	}
	if r.File != "" {
		out.Note("trace in %s (open it in ui.perfetto.dev)", quote.Printable(r.File))
	}
}

// text returns the tables.
func (r Report) text() string {
	var p ui.Page
	var whole time.Duration
	for _, phase := range r.summary.Phases {
		whole += phase.Duration
	}
	share := func(d time.Duration) string {
		return fmt.Sprintf("%6s", fmt.Sprintf("%.1f %%", 100*d.Seconds()/max(whole, 1).Seconds()))
	}
	size := func(n int) string { return fmt.Sprintf("%8s", units.Bytes(int64(n))) }
	phases := ui.Table{{" time ms", " share", " modules", "  others", "    host", "    peak", "phase"}}
	for _, phase := range r.summary.Phases {
		phases.Row(milliseconds(phase.Duration), share(phase.Duration), milliseconds(phase.Evaluated-phase.Self),
			milliseconds(phase.Self), milliseconds(phase.Host), size(phase.Peak), phase.Name)
	}
	p.Table(phases)
	table := func(name string, all []*profile.Module, most int) {
		p.Printf("\n")
		t := ui.Table{{" self ms", " share", "calls", "total ms", "    peak", name}}
		for i, m := range all {
			if i == most {
				var rest time.Duration
				for _, m := range all[i:] {
					rest += m.Self
				}
				t.Row(milliseconds(rest), share(rest), "", "", "", fmt.Sprintf("%d more", len(all)-i))
				break
			}
			t.Row(milliseconds(m.Self), share(m.Self), fmt.Sprintf("%5d", m.Calls), milliseconds(m.Total), size(m.Peak),
				strings.TrimSpace(cmp.Or(m.Name, "values between modules")+" "+m.ShapeText()))
		}
		p.Table(t)
	}
	table("class", r.summary.Classes(), profileClasses)
	table("module", r.summary.Groups(), profileRows)
	p.Printf("\nthe smallest evaluation takes %.3f ms, and every call has at least one\n", r.summary.Overhead.Seconds()*1e3)
	return p.String()
}

// milliseconds returns a duration for a column of a table.
func milliseconds(d time.Duration) string {
	ms := d.Seconds() * 1e3
	if ms >= 1e5 {
		return fmt.Sprintf("%6.0f s", ms/1e3)
	}
	return fmt.Sprintf("%8.2f", ms)
}
