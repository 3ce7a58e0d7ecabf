package checkpoint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// Near lists the names that are likely to be meant by one that is not there,
// the likeliest first: those that differ by the fewest letters, or have it as
// a part.
func Near(name string, names []string, most int) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for _, n := range names {
		limit := 2 + len(name)/4
		if d := distance(name, n, limit); d <= limit {
			found = append(found, candidate{n, d})
		} else if len(name) > 2 && strings.Contains(n, name) {
			found = append(found, candidate{n, limit + len(n)})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, c := range found[:min(most, len(found))] {
		out = append(out, quote.Printable(c.name))
	}
	return out
}

// Hint is what an error about a name that is not there says of the others: the
// nearest of them, or else the first.
func Hint(name string, names []string) string {
	const most = 5
	if near := Near(name, names, most); len(near) > 0 {
		return "near: " + strings.Join(near, ", ")
	}
	if len(names) == 0 {
		return "there are none"
	}
	sorted := slices.Sorted(slices.Values(names))
	var first []string
	for _, n := range sorted[:min(most, len(sorted))] {
		first = append(first, quote.Printable(n))
	}
	text := "there are " + strings.Join(first, ", ")
	if len(sorted) > most {
		text += ", …"
	}
	return text
}

// distance is the number of bytes to insert, delete or change, or limit+1 if
// that is more.
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
