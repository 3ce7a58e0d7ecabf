// Package report has what a comparison with a reference finds: the errors of tensors and images, the
// tolerances that judge them, the verdict that names the first module that differs, and all of this as
// text, JSON and a page. It runs no model.
package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Report is the result of a comparison.
type Report struct {
	Run      string   `json:"run"`
	Model    string   `json:"model"` // or the other run
	Device   string   `json:"device,omitempty"`
	Dtype    string   `json:"dtype,omitempty"`
	RefDtype string   `json:"reference_dtype,omitempty"`
	Readings []string `json:"readings"`
	Verdict  Verdict  `json:"verdict"`
	Stages   []*Stage `json:"stages"` // backwards from pixels
	// Tensors are in the order in which they were computed.
	Tensors []*Tensor `json:"tensors"`
	// Settings lists those in which two saved runs differ.
	Settings []string `json:"different_settings,omitempty"`
	// Missing lists the reference's tensors that should have been compared and were not.
	Missing []string `json:"missing,omitempty"`
	// Absent lists the components that the model lacks, for whose results the reference's stand.
	Absent []string `json:"absent,omitempty"`
	// Statistics counts the tensors of which only statistics were compared.
	Statistics int `json:"statistics,omitempty"`
	// Untapped lists the reference's tensors that have no counterpart.
	Untapped []Untapped `json:"untapped,omitempty"`
	// FirstStep and RefFirstStep are the first steps that ran, here and in the reference.
	FirstStep    int `json:"first_step"`
	RefFirstStep int `json:"reference_first_step"`
	Width        int `json:"width,omitempty"`
	Height       int `json:"height,omitempty"`
	// Unhooked compares the run without hooks; nil without the reading from the start.
	Unhooked *Unhooked `json:"unhooked,omitempty"`
	// Blind lists numbers in configs of which the run does not show whether they are right; see parity.Blind.
	Blind []Blind `json:"blind,omitempty"`
	// Rounds are those of parity.Bisect.
	Rounds []Round `json:"rounds,omitempty"`

	// Replayed is false for a comparison of two saved runs.
	Replayed bool `json:"-"`

	ours, reference []uint8 // pixels of both images
}

// A Blind is a number in a config that could be wrong without a difference in the run.
type Blind struct {
	Config string  `json:"config"` // file
	Key    string  `json:"key"`
	Value  float64 `json:"value"`
	Tried  float64 `json:"tried"`  // in its place, without a difference
	Record string  `json:"record"` // what would show it
}

// A Round is one replay in parity.Bisect.
type Round struct {
	Tensors int     `json:"tensors"` // compared
	Verdict Verdict `json:"verdict"`
	// Asked lists the names that the reference is asked for, for the next round.
	Asked []string `json:"asked,omitempty"`
}

// Find returns the entry of a tensor, or nil.
func (r *Report) Find(name string) *Tensor {
	i := slices.IndexFunc(r.Tensors, func(t *Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return r.Tensors[i]
}

// Judge fills in stages and verdict.
func (r *Report) Judge() {
	byName := map[string]*Stage{}
	for _, t := range r.Tensors {
		s := byName[t.Stage]
		if s == nil {
			s = &Stage{Name: t.Stage, OK: true}
			byName[t.Stage] = s
			r.Stages = append(r.Stages, s)
		}
		s.add(t)
	}
	slices.SortStableFunc(r.Stages, func(a, b *Stage) int { return stageOrder(a.Name) - stageOrder(b.Name) })
	r.Verdict = r.verdict()
	if len(r.Settings) > 0 && !r.Verdict.OK {
		r.Verdict.Text = fmt.Sprintf("the runs have other settings, %s, so no module need be wrong: %s",
			strings.Join(r.Settings, ", "), r.Verdict.Text)
	}
	if u := r.Unhooked; r.Verdict.OK && u != nil && !u.OK {
		r.Verdict = u.Verdict()
	}
}

// isValue reports whether a name is a value of the pipeline, not of a module.
func isValue(name string) bool {
	n, err := hooks.ParseName(name)
	return err == nil && !IsModule(n.Module)
}

// SetImages adds the pixels (red, green, blue) of both images, of one size.
func (r *Report) SetImages(ours, reference []uint8, width, height int) {
	r.ours, r.reference, r.Width, r.Height = ours, reference, width, height
}

// Untapped lists tensors of the reference that have no counterpart here, and the reason.
type Untapped struct {
	Reason string   `json:"reason"`
	Names  []string `json:"names"`
}

// LeaveOut records a tensor of the reference that has no counterpart, and the reason.
func (r *Report) LeaveOut(name, reason string) {
	for i := range r.Untapped {
		if u := &r.Untapped[i]; u.Reason == reason {
			if !slices.Contains(u.Names, name) {
				u.Names = append(u.Names, name)
			}
			return
		}
	}
	r.Untapped = append(r.Untapped, Untapped{reason, []string{name}})
}
