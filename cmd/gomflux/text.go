package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escaped is a message as it can be shown in a terminal: with escapes in the
// place of characters that it would act on, which names of files and of tensors
// can have. Lines and tabs stay.
func escaped(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch _, size := utf8.DecodeRuneInString(s[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n', r == '\t', unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
