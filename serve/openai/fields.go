package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/serve/api"
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

// fail notes an error.
func (f *form) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// invalid notes an error about the value of a field.
func (f *form) invalid(param, format string, args ...any) { f.fail(invalid(param, format, args...)) }

// has reports whether a field is there.
func (f *form) has(name string) bool { _, ok := f.values[name]; return ok }

// take removes a field.
func (f *form) take(name string) (string, bool) {
	v, ok := f.values[name]
	delete(f.values, name)
	return v, ok
}

// parseJSON reads the fields of a JSON object. check, if set, returns an error for a name that is not known.
func parseJSON(body io.Reader, check func(name string) error) (*form, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, broken(err)
	}
	members, err := api.DecodeObject(data)
	if err != nil {
		return nil, failure(http.StatusBadRequest, "invalid_json", "%v", err)
	}
	f := &form{values: map[string]string{}}
	for name, raw := range members {
		if check != nil {
			if err := check(name); err != nil {
				return nil, err
			}
		}
		if string(raw) != "null" {
			f.values[name] = string(raw)
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

// found describes the value of a field in an error.
func (f *form) found(value string) string {
	if f.multipart {
		return quoted(value)
	}
	return kindOf(value)
}

// string returns the text of a field, "" without one.
func (f *form) string(name string) string {
	text, ok := f.values[name]
	if ok && !f.multipart {
		if text[0] != '"' {
			f.invalid(name, "expected a string, found %s", f.found(text))
			return ""
		}
		if err := json.Unmarshal([]byte(text), &text); err != nil {
			f.invalid(name, "%v", err)
		}
	}
	if !utf8.ValidString(text) {
		f.invalid(name, "is not valid UTF-8")
	} else if strings.ContainsRune(text, 0) {
		f.invalid(name, "contains a NUL character")
	}
	return text
}

// number returns the text of a number, and whether the field is one.
func (f *form) number(name, expected string) (string, bool) {
	v, ok := f.values[name]
	text := strings.TrimSpace(v)
	if ok && (!strings.HasPrefix(text, "-") && (text == "" || text[0] < '0' || text[0] > '9') || !json.Valid([]byte(text))) {
		f.invalid(name, "expected %s, found %s", expected, f.found(v))
		return "", false
	}
	return text, ok
}

// quoted returns the beginning of a text for an error.
func quoted(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if r := []rune(text); len(r) > 60 {
		text = string(r[:60]) + "…"
	}
	return strconv.Quote(text)
}

// int returns a whole number, and whether the field is there.
func (f *form) int(name string, least, most int) (int, bool) {
	expected := fmt.Sprintf("a whole number from %d to %d", least, most)
	text, ok := f.number(name, expected)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v != math.Trunc(v) || v < float64(least) || v > float64(most) {
		f.invalid(name, "expected %s, found %s", expected, text)
	}
	return int(v), true
}

// float returns a finite number, and whether the field is there.
func (f *form) float(name string) (float64, bool) {
	text, ok := f.number(name, "a number")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		f.invalid(name, "expected a number, found %s", text)
	}
	return v, true
}

// seed returns a seed, nil without one.
func (f *form) seed(name string) *uint64 {
	const expected = "a whole number from 0 to 18446744073709551615 (leave it out for a random seed)"
	text, ok := f.number(name, expected)
	if !ok {
		return nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		f.invalid(name, "expected %s, found %s", expected, text)
	}
	return &v
}

// bool returns a boolean, false without one.
func (f *form) bool(name string) bool {
	v, ok := f.values[name]
	text := v
	if f.multipart { // Python's clients write True
		text = strings.ToLower(strings.TrimSpace(text))
	}
	if ok && text != "true" && text != "false" {
		f.invalid(name, "expected true or false, found %s", f.found(v))
	}
	return text == "true"
}

// word returns a field that has one of a few values, the first of them without one.
func (f *form) word(name string, words ...string) string {
	text := cmp.Or(f.string(name), words[0])
	if !slices.Contains(words, text) {
		f.invalid(name, "expected %s, found %s", strings.Join(words, ", "), quoted(text))
	}
	return text
}

// either returns the name of a field that has two.
func (f *form) either(name, other string) string {
	switch {
	case !f.has(other):
		return name
	case f.has(name):
		f.invalid(other, "is the same as %s: give one of them", name)
	}
	return other
}
