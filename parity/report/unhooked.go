package report

import (
	"fmt"
	"slices"
	"strings"
)

// An Unhooked compares the run without hooks, as users make it, with the run from the start in which
// hooks look at every module. Without hooks operations are fused, a GPU compiles the forward pass, and
// what depends on the timestep alone is computed for many steps at once.
type Unhooked struct {
	OK    bool `json:"ok"`
	Steps int  `json:"steps"` // whose latents were compared
	// Tensor is the first that differs beyond rounding: latents@STEP or image.
	Tensor string   `json:"tensor,omitempty"`
	Error  *Reading `json:"error,omitempty"` // of Tensor; nil if the run without hooks lacks it
	L2     Number   `json:"l2"`              // the largest of the tensors before it
	// Operations counts the fused operations that were compared with the modules that they stand for,
	// given the same inputs.
	Operations int `json:"operations"`
	// Fused lists the operations that differ, with the first call of each.
	Fused []*FusedDifference `json:"fused,omitempty"`

	// Rest is what else may differ without hooks.
	Rest string `json:"-"`
}

// A FusedDifference is a fused operation that computes something else than its modules.
type FusedDifference struct {
	Module    string `json:"module"`    // with its step and call
	Operation string `json:"operation"` // the function that has both forms
	Max       Number `json:"max_abs"`
	MaxRef    Number `json:"max_reference"`
	L2        Number `json:"l2"`
}

// Compare compares a tensor of the run without hooks with that of the run with them, and reports whether
// it is within tolerance. Pixels have a nil shape.
func (u *Unhooked) Compare(name string, got, want []float32, shape []int, tolerance Tolerance) bool {
	if len(got) == len(want) {
		d := newReading(name, got, want, shape, tolerance)
		if d.OK {
			u.L2 = max(u.L2, d.L2)
			return true
		}
		u.Error = d
	}
	u.OK, u.Tensor = false, name
	return false
}

// Verdict names the first fused operation that differs, or the first step.
func (u *Unhooked) Verdict() Verdict {
	v := Verdict{Tensor: u.Tensor, isolated: true}
	shows := "the latents and the image do not show it"
	if u.Tensor != "" {
		v.Stage = StageOf(u.Tensor)
		shows = fmt.Sprintf("%s is the first to differ (%s)", u.Tensor, u.errorText())
	}
	if len(u.Fused) == 0 {
		v.Module = ModuleOf(u.Tensor)
		v.Text = fmt.Sprintf("without hooks %s, though every fused operation computes what its modules do: "+
			"left is what only a run without hooks has: %s", shows, u.Rest)
		return v
	}
	f := u.Fused[0]
	v.Module, v.Stage = f.Module, StageOf(f.Module)
	v.Text = fmt.Sprintf("%s computes something else without hooks: %s, fused, is wrong (%v); %s", f.Module, f.Operation, f.difference(),
		shows)
	for _, f := range u.Fused[1:] {
		if f.Module != v.Module && !slices.Contains(v.Others, f.Module) {
			v.Others = append(v.Others, f.Module)
		}
	}
	for _, k := range Kinds(v.Others, func(module string) string { return module }) {
		v.Kinds = append(v.Kinds, Others{Modules: k.Name, Count: len(k.Modules), Tensor: k.Modules[0]})
	}
	return v
}

func (f *FusedDifference) difference() string {
	return fmt.Sprintf("max %.2e of %.3g (%.2e), L2 %.2e", f.Max, f.MaxRef, Ratio(f.Max, f.MaxRef), f.L2)
}

func (u *Unhooked) errorText() string {
	if u.Error == nil {
		return "missing"
	}
	return u.Error.String()
}

// Text is a line about the comparison.
func (u *Unhooked) Text() string {
	if u.OK {
		latents := fmt.Sprintf("latents of %d steps and ", u.Steps)
		if u.Steps == 0 { // of a network that enlarges images
			latents = ""
		}
		return fmt.Sprintf("%simage as with hooks (L2 %s at most), %d fused operations as their modules",
			latents, ErrorText(u.L2), u.Operations)
	}
	return fmt.Sprintf("DIFFERS, %d of %d fused operations from their modules", len(u.Fused), u.Operations)
}

// Print writes Text as a line, and nothing for nil.
func (u *Unhooked) Print(b *strings.Builder) {
	if u != nil {
		b.WriteString("without hooks: " + u.Text() + "\n")
	}
}
