package report

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Kind is a group of modules whose names differ by numbers alone, such as the same module of
// several layers and steps.
type Kind[T any] struct {
	Name    string // {0-3,7} for the numbers at one place
	Modules []T
}

// digits matches the number of a list's member, a step or a call, not that in norm1.
var digits = regexp.MustCompile(`[.@#]\d+\b`)

// KindOf returns a module's name without numbers.
func KindOf(module string) string { return digits.ReplaceAllString(module, "*") }

// Kinds groups what is known of modules by their names, in the order of the first of each kind.
func Kinds[T any](modules []T, name func(T) string) []Kind[T] {
	var out []Kind[T]
	at := map[string]int{}
	for _, m := range modules {
		key := KindOf(name(m))
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, Kind[T]{})
		}
		out[i].Modules = append(out[i].Modules, m)
	}
	for i := range out {
		var names []string
		for _, m := range out[i].Modules {
			names = append(names, name(m))
		}
		out[i].Name = joinNumbers(names)
	}
	return out
}

// joinNumbers returns names that differ by numbers alone as one.
func joinNumbers(names []string) string {
	places := make([][]int, len(digits.FindAllString(names[0], -1)))
	for _, name := range names {
		for i, word := range digits.FindAllString(name, -1) {
			n, err := strconv.Atoi(word[1:])
			if err != nil { // too large to be an index
				return names[0]
			}
			places[i] = append(places[i], n)
		}
	}
	place := -1
	return digits.ReplaceAllStringFunc(names[0], func(word string) string {
		place++
		numbers := places[place]
		slices.Sort(numbers)
		if numbers = slices.Compact(numbers); len(numbers) == 1 {
			return word
		}
		return word[:1] + "{" + ranges(numbers) + "}"
	})
}

// ranges returns sorted numbers as 0-3,7.
func ranges(numbers []int) string {
	var words []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		switch word := strconv.Itoa(numbers[i]); {
		case end == i:
			words = append(words, word)
		default:
			words = append(words, fmt.Sprint(word, "-", numbers[end]))
		}
		i = end + 1
	}
	return strings.Join(words, ",")
}
