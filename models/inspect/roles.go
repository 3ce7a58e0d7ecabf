package inspect

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// RoleOf returns a tensor's name with * in place of the numbers of its layers, which is
// the same in all layers: layers.*.attention.to_out.0.weight. A number just before the
// last part is kept, since the modules in such a list differ.
func RoleOf(name string) string {
	parts := strings.Split(name, ".")
	for i := range max(0, len(parts)-2) {
		if _, err := strconv.ParseUint(parts[i], 10, 32); err == nil {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// LayerOf returns the layer of a tensor: its name up to the first number that RoleOf
// replaces (layers.12), or its first part if there is no such number.
func LayerOf(name string) string {
	first := max(0, slices.Index(strings.Split(RoleOf(name), "."), "*"))
	return strings.Join(strings.Split(name, ".")[:first+1], ".")
}

// A role groups the same tensor in all layers.
type role struct {
	name    string
	tensors []*TensorWeights
}

// roles returns the roles of the component's tensors, in the order of their first
// tensors.
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

// minRole is the number of tensors that a median needs.
const minRole = 4

// median returns the median of the standard deviations. It returns false if there are
// too few.
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

// std returns the standard deviation, 0 if it is unknown or not meaningful.
func (t *TensorWeights) std() float64 {
	if t.Stats == nil || !t.Stats.Finite() || t.Len() < 2 {
		return 0
	}
	return float64(t.Stats.Std)
}
