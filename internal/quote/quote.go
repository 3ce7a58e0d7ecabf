// Package quote shows texts that nobody vouches for, such as names in files, so
// that a message stays one line and a terminal does nothing that they ask for.
package quote

import (
	"strconv"
	"strings"
	"unicode"
)

// Text quotes a text as in Go, with escapes for control characters. What is
// longer than 200 bytes is cut.
func Text(s string) string {
	const most = 200
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Name returns a name as it is where it is short and nothing in it would have to
// be escaped, and otherwise its [Text].
func Name(s string) string {
	if q := Text(s); q != `"`+s+`"` {
		return q
	}
	return s
}

// Printable returns a text as it is where a terminal shows all of it, and
// otherwise quotes it as in Go, in full.
func Printable(s string) string {
	if IsPrintable(s) {
		return s
	}
	return strconv.Quote(s)
}

// IsPrintable reports whether a text is valid UTF-8 of characters that a terminal
// shows.
func IsPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}
