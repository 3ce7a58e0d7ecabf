package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/nn"
)

// A FlagKind is a kind of problem with a tensor or a component.
type FlagKind string

const (
	FlagUnreadable FlagKind = "unreadable"     // the component's files or its config cannot be read
	FlagMissing    FlagKind = "missing"        // an expected tensor is missing
	FlagUnexpected FlagKind = "unexpected"     // a tensor is not expected
	FlagShape      FlagKind = "wrong shape"    // a tensor does not have the expected shape
	FlagDtype      FlagKind = "wrong dtype"    // a tensor has a dtype that cannot be computed with
	FlagNotFinite  FlagKind = "not finite"     // a tensor has NaN or infinite elements
	FlagZero       FlagKind = "all zero"       // all elements of a tensor are zero
	FlagConstant   FlagKind = "constant"       // all elements of a tensor are equal
	FlagStd        FlagKind = "suspicious std" // the std is far from that of the same tensor in other layers
	FlagBiases     FlagKind = "biases zero"    // all biases of a component are zero
)

// A Flag is a problem, or a possible problem.
type Flag struct {
	Kind FlagKind
	// Error marks a problem that no trained model has. Other flags are warnings.
	Error  bool
	Tensor string // "" if the flag is about the component
	Text   string // the details, on one line
}

// stdFactor is the largest factor between a standard deviation and the median of its
// role that is not flagged.
const stdFactor = 8

// Flags lists the problems of a component, errors first. Flags about elements require
// that [Weights.Read] was called, and do not cover unused tensors.
func (c *ComponentWeights) Flags() []Flag {
	flags := slices.Concat(c.flagFiles(), c.flagElements(), c.flagStds())
	order := map[bool]int{true: 0, false: 1}
	slices.SortStableFunc(flags, func(a, b Flag) int { return order[a.Error] - order[b.Error] })
	return flags
}

// flagFiles lists the problems that the headers show.
func (c *ComponentWeights) flagFiles() (flags []Flag) {
	if c.Err != nil {
		flags = append(flags, Flag{FlagUnreadable, true, "", c.Err.Error()})
	}
	if c.damaged {
		flags = append(flags, Flag{FlagUnreadable, true, "", c.Unchecked.Error()})
	}
	if m := c.mismatch; m != nil {
		for _, group := range []struct {
			kind    FlagKind
			misfits []nn.Misfit
		}{{FlagMissing, m.Missing}, {FlagUnexpected, m.Unexpected}, {FlagShape, m.Misshapen}, {FlagDtype, m.Mistyped}} {
			for _, misfit := range group.misfits {
				flags = append(flags, Flag{group.kind, true, misfit.Name, strings.TrimLeft(misfit.Why, ", ")})
			}
		}
	}
	return flags
}

// flagElements lists the tensors with elements that trained models do not have.
func (c *ComponentWeights) flagElements() (flags []Flag) {
	n := c.zeroBiases()
	if n > 0 {
		flags = append(flags, Flag{FlagBiases, false, "", fmt.Sprintf("all %d biases of the component", n)})
	}
	for _, t := range c.Tensors {
		s := t.Stats
		switch {
		case t.Unused || s == nil || t.Len() == 0:
		case !s.Finite():
			flags = append(flags, t.flag(FlagNotFinite, true, "%d NaN and %d infinite of %d elements", s.NaN, s.Inf, t.Len()))
		case t.allZero():
			if !t.isBias() || n == 0 {
				flags = append(flags, t.flag(FlagZero, !t.isBias() && t.Len() > 1, "%s %v", t.Dtype, t.Shape))
			}
		case t.Len() > 1 && s.Min == s.Max:
			flags = append(flags, t.flag(FlagConstant, len(t.Shape) > 1, "%s %v, every element is %g", t.Dtype, t.Shape, float64(s.Min)))
		}
	}
	return flags
}

// zeroBiases returns the number of the component's biases if there are several and all
// of them are zero, otherwise 0.
func (c *ComponentWeights) zeroBiases() (n int) {
	for _, t := range c.Tensors {
		if t.isBias() && !t.Unused && t.Stats != nil && t.Len() > 0 {
			if n++; !t.allZero() {
				return 0
			}
		}
	}
	if n < 2 {
		return 0
	}
	return n
}

// flagStds lists the tensors whose standard deviation is far from the median of the same
// tensor in all layers.
func (c *ComponentWeights) flagStds() (flags []Flag) {
	for _, r := range c.roles() {
		median, ok := r.median()
		if !ok {
			continue
		}
		for _, t := range r.tensors {
			std := t.std()
			if ratio := max(std/median, median/std); !t.Unused && std > 0 && ratio > stdFactor {
				flags = append(flags, t.flag(FlagStd, false, "%.3g, expected about %.3g, the median of the %d tensors %s",
					std, median, len(r.tensors), r.name))
			}
		}
	}
	return flags
}

func (t *TensorWeights) flag(kind FlagKind, isError bool, format string, args ...any) Flag {
	return Flag{kind, isError, t.Name, fmt.Sprintf(format, args...)}
}

func (t *TensorWeights) isBias() bool { return t.Name == "bias" || strings.HasSuffix(t.Name, ".bias") }

// allZero reports whether every element is zero. The tensor must not be empty.
func (t *TensorWeights) allZero() bool {
	return t.Stats.Finite() && t.Stats.Min == 0 && t.Stats.Max == 0
}
