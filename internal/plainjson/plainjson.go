// Package plainjson writes JSON without escapes for HTML: "<" instead of "\u003c".
package plainjson

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
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

// Fields returns the members of an object's JSON whose names keep accepts.
func Fields(v any, keep func(name string) bool) (map[string]json.RawMessage, error) {
	text, err := Marshal(v, "")
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return !keep(name) })
	return fields, nil
}
