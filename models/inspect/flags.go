package models

import (
	"fmt"
	"math"
	"slices"
	"strconv"
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

const (
	// stdFactor is how far a standard deviation may be from the median of its
	// role, and minRole how many tensors it takes to know a median.
	stdFactor = 8
	minRole   = 4
)

// Flags lists what is wrong with a component, errors first. Those about elements
// need [Weights.Read] to have been called, and are not of unused tensors.
func (c *ComponentWeights) Flags() []Flag {
	var flags []Flag
	add := func(kind FlagKind, isError bool, tensor, format string, args ...any) {
		flags = append(flags, Flag{kind, isError, tensor, fmt.Sprintf(format, args...)})
	}
	addOf := func(kind FlagKind, isError bool, t *TensorWeights, format string, args ...any) {
		if !t.Unused {
			add(kind, isError, t.Name, format, args...)
		}
	}
	if c.Err != nil {
		add(FlagUnreadable, true, "", "%v", c.Err)
	}
	if c.damaged {
		add(FlagUnreadable, true, "", "%v", c.Unchecked)
	}
	if m := c.mismatch; m != nil {
		for _, group := range []struct {
			kind    FlagKind
			misfits []nn.Misfit
		}{{FlagMissing, m.Missing}, {FlagUnexpected, m.Unexpected}, {FlagShape, m.Misshapen}, {FlagDtype, m.Mistyped}} {
			for _, misfit := range group.misfits {
				add(group.kind, true, misfit.Name, "%s", strings.TrimLeft(misfit.Why, ", "))
			}
		}
	}

	biases, zeroBiases := 0, 0
	for _, t := range c.Tensors {
		if t.isBias() && !t.Unused && t.Stats != nil && t.Len() > 0 {
			biases++
			if t.allZero() {
				zeroBiases++
			}
		}
	}
	allBiases := biases > 1 && zeroBiases == biases
	if allBiases {
		add(FlagBiases, false, "", "all %d biases", biases)
	}
	for _, t := range c.Tensors {
		s := t.Stats
		switch {
		case s == nil || t.Len() == 0:
		case !s.Finite():
			addOf(FlagNotFinite, true, t, "%d NaN and %d infinite of %d elements", s.NaN, s.Inf, t.Len())
		case t.allZero():
			if !t.isBias() || !allBiases {
				addOf(FlagZero, !t.isBias() && t.Len() > 1, t, "%s %v", t.Dtype, t.Shape)
			}
		case t.Len() > 1 && s.Min == s.Max:
			addOf(FlagConstant, len(t.Shape) > 1, t, "%s %v, every element is %g", t.Dtype, t.Shape, float64(s.Min))
		}
	}
	for _, r := range c.roles() {
		median, ok := r.median()
		if !ok {
			continue
		}
		for _, t := range r.tensors {
			std := t.std()
			if ratio := max(std/median, median/std); std > 0 && ratio > stdFactor {
				addOf(FlagStd, false, t, "%.3g, the median of the %d tensors %s is %.3g", std, len(r.tensors), r.name, median)
			}
		}
	}
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

func (t *TensorWeights) isBias() bool { return t.Name == "bias" || strings.HasSuffix(t.Name, ".bias") }

// allZero says whether every element is zero; there must be some.
func (t *TensorWeights) allZero() bool {
	return t.Stats.Finite() && t.Stats.Min == 0 && t.Stats.Max == 0
}

// std is the standard deviation, 0 where it says nothing.
func (t *TensorWeights) std() float64 {
	if t.Stats == nil || !t.Stats.Finite() || t.Len() < 2 {
		return 0
	}
	return float64(t.Stats.Std)
}

// RoleOf is a tensor's name without the numbers of its layers, the same for the
// same tensor in all of them: layers.*.attention.to_out.0.weight. A number just
// before the last part stays, since what is in a list of modules there differs.
func RoleOf(name string) string {
	parts := strings.Split(name, ".")
	for i := range max(0, len(parts)-2) {
		if _, err := strconv.ParseUint(parts[i], 10, 32); err == nil {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// LayerOf is the part of a tensor's name that says which layer it is in, up to the
// first number that RoleOf leaves out (layers.12), or else its first part.
func LayerOf(name string) string {
	parts := strings.Split(name, ".")
	for i := range max(0, len(parts)-2) {
		if _, err := strconv.ParseUint(parts[i], 10, 32); err == nil {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return parts[0]
}

// A role is the same tensor in all layers.
type role struct {
	name    string
	tensors []*TensorWeights
}

// roles are in the order of their first tensors.
func (c *ComponentWeights) roles() []*role {
	var list []*role
	byName := map[string]*role{}
	for _, t := range c.Tensors {
		name := RoleOf(t.Name)
		if byName[name] == nil {
			byName[name] = &role{name: name}
			list = append(list, byName[name])
		}
		byName[name].tensors = append(byName[name].tensors, t)
	}
	return list
}

// median is that of the standard deviations, if there are enough of them.
func (r *role) median() (float64, bool) {
	var stds []float64
	for _, t := range r.tensors {
		if std := t.std(); std > 0 && !math.IsInf(std, 0) {
			stds = append(stds, std)
		}
	}
	if len(stds) < minRole {
		return 0, false
	}
	slices.Sort(stds)
	n := len(stds)
	return (stds[(n-1)/2] + stds[n/2]) / 2, true
}
