package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ours are the fields that this server reads.
var ours = []string{
	"prompt", "model", "n", "size", "quality", "background", "output_format", "output_compression",
	"response_format", "stream", "partial_images",
	// extensions
	"seed", "steps", "num_inference_steps", "guidance", "guidance_scale", "negative_prompt", "strength",
	"loras", "scheduler",
}

// ignored are fields of OpenAI's API that have no effect here, as of openai-python 3.54.0.
var ignored = []string{
	"complexity", "frame_count", "frame_duration_ms", "input_fidelity", "moderation", "prompt_rewriter",
	"safety_identifier", "style", "svg", "user",
}

// ofEdits are the fields of edits that are no fields of generations.
var ofEdits = []string{"image", "images", "mask", "markup"}

// A value is the value of a field: JSON, or text of a form.
type value struct {
	text string
	form bool
}

// fields are the values of a request, by name. Fields that are null or, in a form, empty are left out,
// except for an empty prompt.
type fields map[string]value

// parseJSON reads the fields of a JSON object.
// check, if set, returns an error for a name that is not known.
func parseJSON(data []byte, check func(name string) error) (fields, error) {
	var members map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&members); err != nil {
		var kind *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.EOF):
			return nil, failure(400, "invalid_json", "the body is empty: expected a JSON object")
		case errors.As(err, &kind):
			return nil, failure(400, "invalid_json", "expected a JSON object, found %s", kind.Value)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, failure(400, "invalid_json", "the JSON ends too early")
		}
		return nil, failure(400, "invalid_json", "the body is not JSON: %v", err)
	}
	if members == nil {
		return nil, failure(400, "invalid_json", "expected a JSON object, found null")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, failure(400, "invalid_json", "expected one JSON object, found more after it")
	}
	f := fields{}
	for name, raw := range members {
		if check != nil {
			if err := check(name); err != nil {
				return nil, err
			}
		}
		if string(raw) != "null" {
			f[name] = value{text: string(raw)}
		}
	}
	return f, nil
}

// checkName returns an error for a field that neither this server nor OpenAI has.
func checkName(name string, edit bool) error {
	base, _, _ := strings.Cut(name, "[") // svg[model] of forms
	switch {
	case slices.Contains(ours, name), slices.Contains(ignored, base):
		return nil
	case slices.Contains(ofEdits, name):
		if edit {
			return nil
		}
		return invalid(name, "images are changed by /v1/images/edits")
	}
	shown := strings.ToValidUTF8(name, "\uFFFD")
	if utf8.RuneCountInString(shown) > 100 {
		shown = string([]rune(shown)[:100]) + "…"
	}
	e := failure(400, "unknown_parameter", "unknown parameter %q: expected one of %s", shown, strings.Join(ours, ", "))
	e.Param = &shown
	return e
}

// kindOf names the kind of a JSON value.
func kindOf(raw string) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	}
	return "a number"
}

// string returns the text of a field, "" without one.
func (f fields) string(name string) (string, error) {
	v, ok := f[name]
	if !ok {
		return "", nil
	}
	text := v.text
	if !v.form {
		if text[0] != '"' {
			return "", invalid(name, "expected a string, found %s", kindOf(v.text))
		}
		if err := json.Unmarshal([]byte(v.text), &text); err != nil {
			return "", invalid(name, "%v", err)
		}
	}
	switch {
	case !utf8.ValidString(text):
		return "", invalid(name, "is not valid UTF-8")
	case strings.ContainsRune(text, 0):
		return "", invalid(name, "contains a NUL character")
	}
	return text, nil
}

// number returns the text of a number. It reports whether the field is there.
func (f fields) number(name, expected string) (string, bool, error) {
	v, ok := f[name]
	if !ok {
		return "", false, nil
	}
	text := strings.TrimSpace(v.text)
	if !strings.HasPrefix(text, "-") && (text == "" || text[0] < '0' || text[0] > '9') || !json.Valid([]byte(text)) {
		if v.form {
			return "", false, invalid(name, "expected %s, found %s", expected, quoted(v.text))
		}
		return "", false, invalid(name, "expected %s, found %s", expected, kindOf(v.text))
	}
	return text, true, nil
}

// quoted returns the beginning of a text for an error.
func quoted(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if r := []rune(text); len(r) > 60 {
		text = string(r[:60]) + "…"
	}
	return strconv.Quote(text)
}

// int returns a whole number. It reports whether the field is there.
func (f fields) int(name string, least, most int) (int, bool, error) {
	expected := fmt.Sprintf("a whole number from %d to %d", least, most)
	text, ok, err := f.number(name, expected)
	if !ok || err != nil {
		return 0, false, err
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v != math.Trunc(v) || v < float64(least) || v > float64(most) {
		return 0, false, invalid(name, "expected %s, found %s", expected, text)
	}
	return int(v), true, nil
}

// float returns a finite number. It reports whether the field is there.
func (f fields) float(name string) (float64, bool, error) {
	text, ok, err := f.number(name, "a number")
	if !ok || err != nil {
		return 0, false, err
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, false, invalid(name, "expected a number, found %s", text)
	}
	return v, true, nil
}

// seed returns a seed, nil without one.
func (f fields) seed(name string) (*uint64, error) {
	const expected = "a whole number from 0 to 18446744073709551615 (leave it out for a random seed)"
	text, ok, err := f.number(name, expected)
	if !ok || err != nil {
		return nil, err
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, invalid(name, "expected %s, found %s", expected, text)
	}
	return &v, nil
}

// bool returns a boolean, false without one.
func (f fields) bool(name string) (bool, error) {
	v, ok := f[name]
	if !ok {
		return false, nil
	}
	text := v.text
	if v.form { // Python's clients write True
		text = strings.ToLower(strings.TrimSpace(text))
	}
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if v.form {
		return false, invalid(name, "expected true or false, found %s", quoted(v.text))
	}
	return false, invalid(name, "expected true or false, found %s", kindOf(v.text))
}

// word returns a field that has one of a few values, the first of them without one.
func (f fields) word(name string, words ...string) (string, error) {
	text, err := f.string(name)
	if err != nil || text == "" {
		return words[0], err
	}
	if !slices.Contains(words, text) {
		return "", invalid(name, "expected %s, found %s", strings.Join(words, ", "), quoted(text))
	}
	return text, nil
}

// either returns the name of a field that has two, and an error if both are there.
func (f fields) either(name, other string) (string, error) {
	_, first := f[name]
	_, second := f[other]
	switch {
	case first && second:
		return "", invalid(other, "is the same as %s: give one of them", name)
	case second:
		return other, nil
	}
	return name, nil
}
