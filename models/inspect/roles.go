package inspect

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

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

// minRole is how many tensors it takes to know a median.
const minRole = 4

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

// std is the standard deviation, 0 where it says nothing.
func (t *TensorWeights) std() float64 {
	if t.Stats == nil || !t.Stats.Finite() || t.Len() < 2 {
		return 0
	}
	return float64(t.Stats.Std)
}
