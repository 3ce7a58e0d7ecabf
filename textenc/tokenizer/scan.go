package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// A scanner splits JSON into tokens. It is several times as fast as encoding/json on vocabularies and
// merges, which are nearly all of a tokenizer's files, and its strings are parts of the text.
type scanner struct {
	text string
	at   int
}

var errJSON = errors.New("unexpected end, or a string that is not JSON")

// next returns the next bracket, comma, literal, or string without its quotes and escapes. kind is its
// first byte, but ':' for the name of a member, and 0 at the end of the text and for an invalid string.
func (s *scanner) next() (kind byte, token string) {
	for s.at < len(s.text) && isSpace(s.text[s.at]) {
		s.at++
	}
	if s.at == len(s.text) {
		return 0, ""
	}
	from := s.at
	s.at++
	switch kind = s.text[from]; kind {
	case '{', '}', '[', ']', ',':
	case '"':
		return s.string()
	default:
		for s.at < len(s.text) && !isSpace(s.text[s.at]) && s.text[s.at] != ',' && s.text[s.at] != '}' && s.text[s.at] != ']' {
			s.at++
		}
	}
	return kind, s.text[from:s.at]
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// isNumber reports whether a token of some kind can be a number.
func isNumber(kind byte) bool { return kind == '-' || '0' <= kind && kind <= '9' }

// string is next after a quote.
func (s *scanner) string() (kind byte, token string) {
	from, escaped := s.at, false
	for ; ; s.at++ {
		if s.at >= len(s.text) || s.text[s.at] < ' ' {
			s.at = len(s.text)
			return 0, ""
		}
		if s.text[s.at] == '"' {
			break
		}
		if s.text[s.at] == '\\' {
			escaped = true
			s.at++
		}
	}
	token = s.text[from:s.at]
	s.at++
	if escaped {
		var err error
		if token, err = unescape(token); err != nil {
			return 0, ""
		}
	}
	for i := s.at; i < len(s.text); i++ {
		if s.text[i] == ':' {
			s.at = i + 1
			return ':', token
		}
		if !isSpace(s.text[i]) {
			break
		}
	}
	return '"', token
}

func unescape(s string) (value string, err error) {
	err = json.Unmarshal([]byte(`"`+s+`"`), &value)
	return value, err
}

// peek returns the kind of the next token.
func (s scanner) peek() byte {
	kind, _ := s.next()
	return kind
}

// list calls item for each element or member between two brackets.
func (s *scanner) list(brackets string, item func(kind byte, token string) error) error {
	kind, token := s.next()
	if kind != brackets[0] {
		return s.unexpected(brackets, kind, token)
	}
	if kind, token = s.next(); kind == brackets[1] {
		return nil
	}
	for {
		if err := item(kind, token); err != nil {
			return err
		}
		switch kind, token = s.next(); kind {
		case brackets[1]:
			return nil
		case ',':
			kind, token = s.next()
		default:
			return s.unexpected("a comma or "+brackets[1:], kind, token)
		}
	}
}

func (s *scanner) unexpected(expected string, kind byte, found string) error {
	if kind == 0 {
		return errJSON
	}
	return fmt.Errorf("expected %s, found %.40q at byte %d", expected, found, s.at)
}

// vocabulary reads an object of tokens and their ids.
func (s *scanner) vocabulary() (map[string]uint32, error) {
	ids := make(map[string]uint32, len(s.text)/64)
	err := s.list("{}", func(kind byte, token string) error {
		if kind != ':' {
			return s.unexpected("a token and its id", kind, token)
		}
		kind, number := s.next()
		id, err := strconv.ParseUint(number, 10, 32)
		if !isNumber(kind) || err != nil {
			return s.unexpected("the id of a token, an integer of 32 bits", kind, number)
		}
		ids[token] = uint32(id)
		return nil
	})
	return ids, err
}

// pieces reads a list of pieces and their scores.
func (s *scanner) pieces() (list pieces, err error) {
	err = s.list("[]", func(open byte, token string) error {
		quote, text := s.next()
		comma, _ := s.next()
		digit, number := s.next()
		end, _ := s.next()
		score, err := strconv.ParseFloat(number, 64)
		if open != '[' || quote != '"' || comma != ',' || !isNumber(digit) || err != nil || end != ']' {
			return fmt.Errorf("expected a piece and its score, found %.40q %.40q %.40q", token, text, number)
		}
		list = append(list, piece{text, score})
		return nil
	})
	return list, err
}

// merges reads a list of pairs, as transformers 5 writes them, or of strings with a space between
// two tokens, as transformers 4 does.
func (s *scanner) merges(size int) ([]merge, error) {
	list := make([]merge, 0, size)
	err := s.list("[]", func(kind byte, token string) error {
		m, ok := splitMerge(token)
		if ok = ok && kind == '"'; kind == '[' {
			var first, second byte
			first, m[0] = s.next()
			comma, _ := s.next()
			second, m[1] = s.next()
			end, _ := s.next()
			ok = first == '"' && comma == ',' && second == '"' && end == ']'
		}
		if list = append(list, m); !ok {
			return fmt.Errorf("merge %d: expected two tokens, a pair or with a space between them, found %.40q %.40q", len(list), m, token)
		}
		return nil
	})
	return list, err
}
