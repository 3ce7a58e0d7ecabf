package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/quote"
)

// encoding/json accepts duplicate keys, of which the last wins, and replaces
// invalid UTF-8. Other readers may interpret such a file differently, so
// validated files go through this stricter scanner. It uses no memory other than
// for its results.

// maxDepth limits the recursion of skip.
const maxDepth = 500

// scanner reads a JSON text (RFC 8259).
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

// newScanner returns a scanner, or an error if the text is not UTF-8.
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
	return &scanner{data: data}, nil
}

// peek skips white space and returns the next byte, or 0 at the end of the text.
// A NUL in the text is also returned as 0; no grammar rule accepts it.
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

// found describes the value at the current position, for errors.
func (s *scanner) found() string {
	if s.pos >= len(s.data) {
		return "the end of the text"
	}
	switch c := s.data[s.pos]; {
	case c == '"':
		return "a string"
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '-' || c >= '0' && c <= '9':
		return "a number"
	}
	for _, word := range []string{"null", "true", "false"} {
		if s.has(word) {
			return word
		}
	}
	r, _ := utf8.DecodeRune(s.data[s.pos:])
	return strconv.QuoteRune(r)
}

func (s *scanner) has(word string) bool {
	return len(s.data)-s.pos >= len(word) && string(s.data[s.pos:s.pos+len(word)]) == word
}

// end checks that nothing but white space is left.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return failf(s.pos, "expected one JSON value, found %s after it", s.found())
	}
	return nil
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if s.peek() != '"' {
		return "", failf(s.pos, "expected a string, found %s", s.found())
	}
	start := s.pos + 1
	for i := start; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return string(s.data[start:i]), nil
		case c == '\\':
			return s.escaped(start, i)
		case c < 0x20:
			return "", failf(i, "control character %#02x in a string", c)
		}
	}
	return "", failf(s.pos, "string without an end")
}

// escaped reads the rest of a string that begins at start and has its first escape
// at i.
func (s *scanner) escaped(start, i int) (string, error) {
	out := append([]byte(nil), s.data[start:i]...)
	for i < len(s.data) {
		c := s.data[i]
		switch {
		case c == '"':
			s.pos = i + 1
			return string(out), nil
		case c < 0x20:
			return "", failf(i, "control character %#02x in a string", c)
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		if i+1 >= len(s.data) {
			break
		}
		switch e := s.data[i+1]; e {
		case '"', '\\', '/':
			out = append(out, e)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := s.hex4(i)
			if r >= 0 && utf16.IsSurrogate(r) {
				r = utf16.DecodeRune(r, s.hex4(i+6))
				if r == utf8.RuneError {
					r = -1
				}
				i += 6
			}
			if r < 0 {
				return "", failf(i, "invalid \\u escape in a string")
			}
			out = utf8.AppendRune(out, r)
			i += 4
		default:
			return "", failf(i, "invalid escape in a string")
		}
		i += 2
	}
	return "", failf(start-1, "string without an end")
}

// hex4 returns the value of the \uXXXX at i, or -1 if there is no such escape.
func (s *scanner) hex4(i int) rune {
	if i+6 > len(s.data) || s.data[i] != '\\' || s.data[i+1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range s.data[i+2 : i+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// number steps over a number and returns its text.
func (s *scanner) number() (string, error) {
	s.peek()
	start := s.pos
	digits := func() bool {
		from := s.pos
		for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > from
	}
	if s.has("-") {
		s.pos++
	}
	if s.has("Infinity") || s.has("NaN") {
		return "", failf(start, "NaN and Infinity are not JSON")
	}
	zero := s.has("0")
	from := s.pos
	ok := digits() && (!zero || s.pos == from+1)
	if ok && s.has(".") {
		s.pos++
		ok = digits()
	}
	if ok && (s.has("e") || s.has("E")) {
		s.pos++
		if s.has("+") || s.has("-") {
			s.pos++
		}
		ok = digits()
	}
	if !ok {
		return "", failf(start, "invalid number")
	}
	return string(s.data[start:s.pos]), nil
}

// whole reads a number from 0 to 2^63-1 that is written without sign, fraction or
// exponent.
func (s *scanner) whole() (int64, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, failf(s.pos, "expected a whole number, found %s", s.found())
	}
	start := s.pos
	text, err := s.number()
	if err != nil {
		return 0, err
	}
	var n int64
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, failf(start, "expected a whole number, found %s", quote.Text(text))
		}
		if n > (math.MaxInt64-int64(c-'0'))/10 {
			return 0, failf(start, "number %s is too large", quote.Text(text))
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

// array reads an array. item reads each of its values.
func (s *scanner) array(item func() error) error {
	if s.peek() != '[' {
		return failf(s.pos, "expected an array, found %s", s.found())
	}
	s.pos++
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.peek() == ']' {
			s.pos++
			return nil
		}
		if s.peek() != ',' {
			return failf(s.pos, "expected ',' or ']', found %s", s.found())
		}
		s.pos++
	}
}

// object reads an object. member reads the value of each key, and detects
// duplicate keys.
func (s *scanner) object(member func(key string, offset int) error) error {
	if s.peek() != '{' {
		return failf(s.pos, "expected an object, found %s", s.found())
	}
	s.pos++
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		s.peek()
		at := s.pos
		key, err := s.str()
		if err != nil {
			return err
		}
		if s.peek() != ':' {
			return failf(s.pos, "expected ':', found %s", s.found())
		}
		s.pos++
		if err := member(key, at); err != nil {
			return err
		}
		if s.peek() == '}' {
			s.pos++
			return nil
		}
		if s.peek() != ',' {
			return failf(s.pos, "expected ',' or '}', found %s", s.found())
		}
		s.pos++
	}
}

func duplicate(key string, offset int) error {
	return failf(offset, "duplicate key %s", quote.Text(key))
}

// skip skips a value. It checks its syntax and rejects duplicate keys.
func (s *scanner) skip() error { return s.skipAt(0) }

func (s *scanner) skipAt(depth int) error {
	if depth > maxDepth {
		return failf(s.pos, "nested deeper than %d levels", maxDepth)
	}
	switch s.peek() {
	case '{':
		seen := make(map[string]struct{})
		return s.object(func(key string, offset int) error {
			if _, dup := seen[key]; dup {
				return duplicate(key, offset)
			}
			seen[key] = struct{}{}
			return s.skipAt(depth + 1)
		})
	case '[':
		return s.array(func() error { return s.skipAt(depth + 1) })
	case '"':
		_, err := s.str()
		return err
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'N', 'I':
		_, err := s.number()
		return err
	}
	for _, word := range []string{"null", "true", "false"} {
		if s.has(word) {
			s.pos += len(word)
			return nil
		}
	}
	return failf(s.pos, "expected a value, found %s", s.found())
}

// lineOf returns the line of the byte at offset, counted from 1.
func lineOf(data []byte, offset int) int {
	line := 1
	for _, c := range data[:min(max(offset, 0), len(data))] {
		if c == '\n' {
			line++
		}
	}
	return line
}

// atLine replaces the byte offset in a scanner's error by the line.
func atLine(data []byte, err error) error {
	var fault *jsonError
	if errors.As(err, &fault) {
		return fmt.Errorf("line %d: %w", lineOf(data, fault.offset), fault.err)
	}
	return err
}
