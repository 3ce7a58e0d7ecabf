// Package plainjson writes JSON without the escapes that HTML needs: "<" and not
// "\u003c".
package plainjson

import (
	"bytes"
	"encoding/json"
	"io"
)

// Write writes v and a line's end. With an indent, each element has a line.
func Write(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// Marshal returns what [Write] writes, without the line's end.
func Marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	if err := Write(&b, v, indent); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
