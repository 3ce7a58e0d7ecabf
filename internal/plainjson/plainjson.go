// Package plainjson writes JSON without escapes for HTML: "<" instead of "\u003c".
package plainjson

import (
	"bytes"
	"encoding/json"
	"io"
)

// Write writes v and a newline. With an indent, each element has a line.
func Write(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// Marshal returns the JSON of [Write] without the newline.
func Marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	if err := Write(&b, v, indent); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
