package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"

	"github.com/gomflux/gomflux/models/errs"
)

// DecodeJSON decodes one JSON object into a map, or into a struct that has fields for all of its names. The error is a
// [gomflux.ErrRequest].
func DecodeJSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	wrong, isWrong := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case err == io.EOF:
		return errs.Requestf("the body is empty: expected a JSON object")
	case err == io.ErrUnexpectedEOF:
		return errs.Requestf("the JSON ends too early")
	case isWrong && wrong.Field == "":
		return errs.Requestf("expected a JSON object, found %s", wrong.Value)
	case isWrong:
		return errs.Requestf("%s: expected %s, found JSON %s", wrong.Field, jsonKind(wrong.Type), wrong.Value)
	case syntax:
		return errs.Requestf("the body is not JSON: %v", err)
	case err != nil:
		return errs.Requestf("the JSON of the request: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errs.Requestf("expected one JSON object, found more after it")
	}
	return nil
}

// DecodeObject is DecodeJSON for an object with any names.
func DecodeObject(text []byte) (members map[string]json.RawMessage, err error) {
	if err = DecodeJSON(text, &members); err == nil && members == nil {
		err = errs.Requestf("expected a JSON object, found null")
	}
	return members, err
}

// jsonKind describes the JSON values of a type.
func jsonKind(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := t.Kind(); {
	case kind == reflect.String:
		return "a string"
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.Slice:
		return "an array"
	case kind == reflect.Struct:
		return "an object"
	case kind >= reflect.Int && kind <= reflect.Uintptr:
		return "a whole number"
	}
	return "a number"
}
