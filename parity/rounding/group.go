package rounding

import (
	"strings"

	"github.com/gomflux/gomflux/parity/report"
)

// A group is a module and those inside it, or one module alone.
type group struct {
	name    string        // the path that its modules begin with
	modules []string      // sorted
	error   report.Number // of the image if it alone is low
	known   bool          // error was measured
}

// split returns the parts of a group: the module itself, and a group for each module right inside
// it. A single module is its own part.
func (g group) split() []group {
	if len(g.modules) == 1 {
		return []group{g}
	}
	var parts []group
	for _, m := range g.modules {
		name := m
		if rest := strings.TrimPrefix(strings.TrimPrefix(m, g.name), "."); m != g.name {
			next, _, _ := strings.Cut(rest, ".")
			name = strings.TrimPrefix(g.name+"."+next, ".")
		}
		if n := len(parts); n > 0 && parts[n-1].name == name && m != g.name {
			parts[n-1].modules = append(parts[n-1].modules, m)
			continue
		}
		parts = append(parts, group{name: name, modules: []string{m}})
	}
	if len(parts) == 1 {
		return parts[0].split()
	}
	return parts
}

// blocks returns the blocks of all components: what is right inside them, and the elements of
// lists there.
func (g group) blocks() (blocks []group) {
	for _, c := range g.split() {
		for _, part := range c.split() {
			if part.isList() {
				blocks = append(blocks, part.split()...)
			} else {
				blocks = append(blocks, part)
			}
		}
	}
	return blocks
}

// isList reports whether the names right inside are numbers.
func (g group) isList() bool {
	parts := g.split()
	for _, p := range parts {
		if last := p.name[strings.LastIndexByte(p.name, '.')+1:]; strings.Trim(last, "0123456789") != "" {
			return false
		}
	}
	return len(parts) > 1
}
