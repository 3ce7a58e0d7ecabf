package layout

import "slices"

// The functions in this file create the rules of tables.

// Rename returns a rule for each pair of names: the layout's and diffusers'.
func Rename(pairs ...string) (rules []Rule) {
	for i := 0; i < len(pairs); i += 2 {
		rules = append(rules, Rule{Other: pairs[i], Names: []string{pairs[i+1]}})
	}
	return rules
}

// Fuse returns the rule of a module that concatenates the rows of several.
func Fuse(other string, names ...string) Rule { return Rule{Other: other, Names: names} }

// Under adds prefixes to both sides of rules: other to the layout's names, name to
// diffusers'.
func Under(other, name string, rules ...[]Rule) (out []Rule) {
	for _, r := range slices.Concat(rules...) {
		names := make([]string, len(r.Names))
		for i := range names {
			names[i] = name + "." + r.Names[i]
		}
		out = append(out, Rule{Other: other + "." + r.Other, Names: names, Transforms: r.Transforms})
	}
	return out
}

// Unused returns rules for names of the layout that diffusers does not have.
func Unused(others ...string) (rules []Rule) {
	for _, other := range others {
		rules = append(rules, Rule{Other: other})
	}
	return rules
}
