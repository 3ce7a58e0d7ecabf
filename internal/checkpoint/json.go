package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/quote"
)

// encoding/json accepts duplicate keys, of which the last wins, and replaces
// invalid UTF-8. Other readers may interpret such a file differently, so
// validated files go through this stricter scanner.

// scanner reads the values of a JSON text (RFC 8259) whose syntax encoding/json has checked.
type scanner struct {
	data []byte
	pos  int
}

// jsonError is an error at a byte of the text.
type jsonError struct {
	offset int
	err    error
}

func (e *jsonError) Error() string { return fmt.Sprintf("at byte %d: %v", e.offset, e.err) }

// failf returns an error for the byte at offset.
func failf(offset int, format string, args ...any) error {
	return &jsonError{offset, fmt.Errorf(format, args...)}
}

// newScanner returns a scanner, or an error if the text is not UTF-8, or not one JSON value.
func newScanner(data []byte) (*scanner, error) {
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, n := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && n <= 1 {
				break
			}
			at += n
		}
		return nil, failf(at, "the text is not UTF-8")
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(data, &struct{}{})); ok {
		at := max(0, int(wrong.Offset)-1)
		if rest := data[at:]; bytes.HasPrefix(rest, []byte("NaN")) || bytes.HasPrefix(rest, []byte("Infinity")) {
			return nil, failf(at, "NaN and Infinity are not JSON")
		}
		return nil, failf(at, "%v", wrong)
	}
	return &scanner{data: data}, nil
}

// peek skips white space and returns the next byte, or 0 at the end of the text.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// at skips white space and returns the offset of the next byte.
func (s *scanner) at() int {
	s.peek()
	return s.pos
}

// found describes the value at the current position, for errors.
func (s *scanner) found() string {
	switch c := s.data[s.pos]; c {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 'n', 't', 'f':
		at := *s
		return at.token()
	}
	return "a number"
}

func (s *scanner) has(word string) bool { return bytes.HasPrefix(s.data[s.pos:], []byte(word)) }

// str reads a string.
func (s *scanner) str() (string, error) {
	if s.peek() != '"' {
		return "", failf(s.pos, "expected a string, found %s", s.found())
	}
	start, escaped := s.pos, false
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] == '\\' {
			escaped = true
			s.pos++
		}
	}
	s.pos++
	if !escaped {
		return string(s.data[start+1 : s.pos-1]), nil
	}
	var text string
	raw := s.data[start:s.pos]
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", failf(start, "%v", err)
	}
	const replaced = "\ufffd" // which stands for half of a surrogate pair in encoding/json
	if n := strings.Count(text, replaced); n > 0 &&
		n > bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))+bytes.Count(raw, []byte(replaced)) {
		return "", failf(start, `invalid \u escape in a string`)
	}
	return text, nil
}

// token steps over a number, null, true or false, and returns its text.
func (s *scanner) token() string {
	start := s.pos
	for s.pos < len(s.data) && bytes.IndexByte([]byte(",]} \t\r\n"), s.data[s.pos]) < 0 {
		s.pos++
	}
	return string(s.data[start:s.pos])
}

// whole reads a number from 0 to 2^63-1 that is written without sign, fraction or
// exponent.
func (s *scanner) whole() (int64, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, failf(s.pos, "expected a whole number, found %s", s.found())
	}
	start := s.pos
	text := s.token()
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && text[0] != '-':
		return 0, failf(start, "number %s is too large", quote.Text(text))
	case err != nil || text[0] == '-':
		return 0, failf(start, "expected a whole number, found %s", quote.Text(text))
	}
	return n, nil
}

// list reads what is between brackets. item reads each value, of an object with its key.
func (s *scanner) list(bracket byte, expected string, item func() error) error {
	if s.peek() != bracket {
		return failf(s.pos, "expected %s, found %s", expected, s.found())
	}
	for s.pos++; s.peek() != bracket+2; { // the closing one, in ASCII
		if err := item(); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

// array reads an array. item reads each of its values.
func (s *scanner) array(item func() error) error { return s.list('[', "an array", item) }

// object reads an object, whose keys must differ. member reads the value of each key.
func (s *scanner) object(member func(key string, offset int) error) error {
	seen := map[string]bool{}
	return s.list('{', "an object", func() error {
		at := s.pos
		key, err := s.str()
		if err == nil && seen[key] {
			err = failf(at, "duplicate key %s", quote.Text(key))
		}
		if err != nil {
			return err
		}
		seen[key] = true
		s.peek()
		s.pos++ // the colon
		return member(key, at)
	})
}

// skip skips a value.
func (s *scanner) skip() error {
	switch s.peek() {
	case '{':
		return s.object(func(string, int) error { return s.skip() })
	case '[':
		return s.array(s.skip)
	case '"':
		_, err := s.str()
		return err
	}
	s.token()
	return nil
}

// lineOf returns the line of the byte at offset, counted from 1.
func lineOf(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}

// atLine replaces the byte offset in a scanner's error by the line.
func atLine(data []byte, err error) error {
	var fault *jsonError
	if errors.As(err, &fault) {
		return fmt.Errorf("line %d: %w", lineOf(data, fault.offset), fault.err)
	}
	return err
}
