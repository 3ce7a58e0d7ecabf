package checkpoint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// Similar lists at most limit names that are similar to a name that does not
// exist, the most similar first. They differ by a few letters or contain the name.
func Similar(name string, names []string, limit int) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for _, n := range names {
		maxDistance := 2 + len(name)/4
		if d := distance(name, n, maxDistance); d <= maxDistance {
			found = append(found, candidate{n, d})
		} else if len(name) > 2 && strings.Contains(n, name) {
			found = append(found, candidate{n, maxDistance + len(n)})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, c := range found[:min(limit, len(found))] {
		out = append(out, quote.Printable(c.name))
	}
	return out
}

// Hint returns the hint of an error about a name that does not exist: similar
// names or else the first few.
func Hint(name string, names []string) string {
	const limit = 5
	if similar := Similar(name, names, limit); len(similar) > 0 {
		return "similar: " + strings.Join(similar, ", ")
	}
	if len(names) == 0 {
		return "there are no others"
	}
	sorted := slices.Sorted(slices.Values(names))
	var first []string
	for _, n := range sorted[:min(limit, len(sorted))] {
		first = append(first, quote.Printable(n))
	}
	text := "there are " + strings.Join(first, ", ")
	if len(sorted) > limit {
		text += ", …"
	}
	return text
}

// distance returns the number of bytes to insert, delete or change to get from a
// to b, or limit+1 if it is larger than limit.
func distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last, least := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			d := last
			if a[i] != b[j] {
				d = 1 + min(last, row[j], row[j+1])
			}
			last, row[j+1] = row[j+1], d
			least = min(least, d)
		}
		if least > limit {
			return limit + 1
		}
	}
	return row[len(b)]
}
