// Package quote formats untrusted texts, such as names in files, so that messages
// stay on one line and contain no control sequences for the terminal.
package quote

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Text quotes a text as in Go, with escapes for control characters. It shortens
// texts of more than 200 bytes.
func Text(s string) string {
	const most = 200
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Name returns a name unchanged if it is short and needs no escapes, otherwise its
// [Text].
func Name(s string) string {
	if q := Text(s); q != `"`+s+`"` {
		return q
	}
	return s
}

// List joins names, at most so many of them.
func List(names []string, most int) string {
	if n := len(names) - most; n > 0 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ")
}

// Printable returns a text unchanged if it is printable, otherwise quotes it as in
// Go, without shortening.
func Printable(s string) string {
	if IsPrintable(s) {
		return s
	}
	return strconv.Quote(s)
}

// IsPrintable reports whether a text is valid UTF-8 and has only printable
// characters.
func IsPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}

// Shell returns the words of a command as a shell reads them.
func Shell(words ...string) string {
	quoted := make([]string, len(words))
	for i, s := range words {
		plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./,:+@%", r)
		})
		switch {
		case !IsPrintable(s): // $'' is bash's and zsh's
			text := strconv.QuoteToASCII(s)
			quoted[i] = "$'" + strings.ReplaceAll(strings.ReplaceAll(text[1:len(text)-1], `\"`, `"`), "'", `\'`) + "'"
		case plain:
			quoted[i] = s
		default:
			quoted[i] = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
