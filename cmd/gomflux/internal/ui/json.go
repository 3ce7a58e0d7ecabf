package ui

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/gomflux/gomflux/internal/plainjson"
)

// WriteJSON writes a value on one line, with escapes for every character that a
// terminal acts on.
func WriteJSON(w io.Writer, v any) error {
	text, err := plainjson.Marshal(v, "")
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			hi, lo := (r-0x10000)>>10, (r-0x10000)&0x3ff
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+hi, 0xdc00+lo)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}
