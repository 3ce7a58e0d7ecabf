package layout

import "slices"

// What tables are written with.

// Rename makes a rule of every pair: a name there, and diffusers'.
func Rename(pairs ...string) (rules []Rule) {
	for i := 0; i < len(pairs); i += 2 {
		rules = append(rules, Rule{Other: pairs[i], Names: []string{pairs[i+1]}})
	}
	return rules
}

// Fuse is the rule of a module that has the rows of several.
func Fuse(other string, names ...string) Rule { return Rule{Other: other, Names: names} }

// Under puts modules' names before both sides of rules.
func Under(other, name string, rules ...[]Rule) (out []Rule) {
	for _, r := range slices.Concat(rules...) {
		names := make([]string, len(r.Names))
		for i := range names {
			names[i] = name + "." + r.Names[i]
		}
		out = append(out, Rule{Other: other + "." + r.Other, Names: names, Forms: r.Forms})
	}
	return out
}

// Unused makes rules of what other programs do not have.
func Unused(others ...string) (rules []Rule) {
	for _, other := range others {
		rules = append(rules, Rule{Other: other})
	}
	return rules
}
