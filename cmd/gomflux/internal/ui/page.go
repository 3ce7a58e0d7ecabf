package ui

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// A Page is text for standard output.
type Page struct{ strings.Builder }

// Printf writes formatted text.
func (p *Page) Printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// A Field writes a line with a name and a value.
type Field func(name, format string, args ...any)

// Fields returns a function that writes names and values in two columns, the
// first of the given width. A value with control characters is quoted.
func (p *Page) Fields(width int) Field {
	return func(name, format string, args ...any) {
		p.Printf("%-*s %s\n", width, name, quote.Printable(fmt.Sprintf(format, args...)))
	}
}

// A Table has rows of cells. Cells with control characters are quoted.
type Table [][]string

// Row appends a row.
func (t *Table) Row(cells ...string) { *t = append(*t, cells) }

// Table writes a table in columns with two spaces between them.
func (p *Page) Table(t Table) {
	var width []int
	for _, row := range t {
		for i := range row {
			row[i] = quote.Printable(row[i])
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(row[i])))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", width[i], cell)
		}
		p.Printf("%s\n", strings.TrimRight(line.String(), " "))
	}
}
