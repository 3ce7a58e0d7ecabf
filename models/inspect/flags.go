package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/nn"
)

// A FlagKind is what is wrong with a tensor or a component.
type FlagKind string

const (
	FlagUnreadable FlagKind = "unreadable"  // the component's files cannot be read, or its config
	FlagMissing    FlagKind = "missing"     // expected and not there
	FlagUnexpected FlagKind = "unexpected"  // there and not expected
	FlagShape      FlagKind = "wrong shape" // not the expected one
	FlagDtype      FlagKind = "wrong dtype" // not one that can be computed with
	FlagNotFinite  FlagKind = "not finite"  // has NaN or infinite elements
	FlagZero       FlagKind = "all zero"
	FlagConstant   FlagKind = "constant"
	FlagStd        FlagKind = "suspicious std" // far from that of the same tensor in other layers
	FlagBiases     FlagKind = "biases zero"    // all of a component's
)

// A Flag is one thing that is wrong, or may be.
type Flag struct {
	Kind FlagKind
	// Error marks what no trained model has. The rest are warnings.
	Error  bool
	Tensor string // "" where it is about the component
	Text   string // the details, on one line
}

// stdFactor is how far a standard deviation may be from the median of its role.
const stdFactor = 8

// Flags lists what is wrong with a component, errors first. Those about elements
// need [Weights.Read] to have been called, and are not of unused tensors.
func (c *ComponentWeights) Flags() []Flag {
	flags := slices.Concat(c.flagFiles(), c.flagElements(), c.flagStds())
	slices.SortStableFunc(flags, func(a, b Flag) int {
		switch {
		case a.Error == b.Error:
			return 0
		case a.Error:
			return -1
		}
		return 1
	})
	return flags
}

// flagFiles lists what is wrong by the headers.
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

// flagElements lists the tensors with elements that no trained model has.
func (c *ComponentWeights) flagElements() (flags []Flag) {
	n := c.zeroBiases()
	if n > 0 {
		flags = append(flags, Flag{FlagBiases, false, "", fmt.Sprintf("all %d biases", n)})
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

// zeroBiases is how many biases the component has if all of them are zero, and
// there are several; otherwise 0.
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

// flagStds lists the tensors whose standard deviation is far from that of the same
// tensor in other layers.
func (c *ComponentWeights) flagStds() (flags []Flag) {
	for _, r := range c.roles() {
		median, ok := r.median()
		if !ok {
			continue
		}
		for _, t := range r.tensors {
			std := t.std()
			if ratio := max(std/median, median/std); !t.Unused && std > 0 && ratio > stdFactor {
				flags = append(flags, t.flag(FlagStd, false, "%.3g, the median of the %d tensors %s is %.3g", std, len(r.tensors), r.name, median))
			}
		}
	}
	return flags
}

func (t *TensorWeights) flag(kind FlagKind, isError bool, format string, args ...any) Flag {
	return Flag{kind, isError, t.Name, fmt.Sprintf(format, args...)}
}

func (t *TensorWeights) isBias() bool { return t.Name == "bias" || strings.HasSuffix(t.Name, ".bias") }

// allZero reports whether every element is zero; there must be some.
func (t *TensorWeights) allZero() bool {
	return t.Stats.Finite() && t.Stats.Min == 0 && t.Stats.Max == 0
}
