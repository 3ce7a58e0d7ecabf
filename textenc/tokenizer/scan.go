package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A scanner reads JSON from valid UTF-8. It is several times as fast as encoding/json on vocabularies
// and merges, which are nearly all of a tokenizer's files. The strings that it returns are parts of
// the text.
type scanner struct {
	text string
	at   int
}

var errEnd = errors.New("unexpected end of JSON input")

// next returns the next byte that is not a space, 0 at the end of the text.
func (s *scanner) next() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// take reads the byte c.
func (s *scanner) take(c byte) error {
	if s.next() != c {
		return s.expected(strconv.QuoteRune(rune(c)))
	}
	s.at++
	return nil
}

// expected returns an error that quotes the text at the scanner's place.
func (s *scanner) expected(what string) error {
	if s.next() == 0 && s.at == len(s.text) {
		return errEnd
	}
	return fmt.Errorf("byte %d: expected %s, found %.40q", s.at, what, s.text[s.at:min(len(s.text), s.at+40)])
}

// list calls item at each element between two brackets.
func (s *scanner) list(open, end byte, item func() error) error {
	if err := s.take(open); err != nil {
		return err
	}
	if s.next() == end {
		s.at++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.next() != ',' {
			return s.take(end)
		}
		s.at++
	}
}

// object calls field at the value of each member of an object.
func (s *scanner) object(field func(name string) error) error {
	return s.list('{', '}', func() error {
		name, err := s.string()
		if err == nil {
			err = s.take(':')
		}
		if err != nil {
			return err
		}
		return field(name)
	})
}

// string reads a string.
func (s *scanner) string() (string, error) {
	if s.next() != '"' {
		return "", s.expected("a string")
	}
	from, escaped := s.at, false
	for i := from + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			if s.at = i + 1; !escaped {
				return s.text[from+1 : i], nil
			}
			return unescape(s.text[from:s.at])
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			return "", fmt.Errorf("byte %d: found the control character %q in a string", i, c)
		}
	}
	return "", errEnd
}

func unescape(quoted string) (value string, err error) {
	err = json.Unmarshal([]byte(quoted), &value)
	return value, err
}

// number reads the text of a number.
func (s *scanner) number() string {
	s.next()
	from := s.at
	for s.at < len(s.text) && strings.IndexByte("+-.0123456789Ee", s.text[s.at]) >= 0 {
		s.at++
	}
	return s.text[from:s.at]
}

// skip reads a value, whose syntax it does not check.
func (s *scanner) skip() error {
	for depth := 0; ; s.at++ {
		switch s.next() {
		case 0:
			return errEnd
		case '"':
			if _, err := s.string(); err != nil {
				return err
			}
			s.at--
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return s.expected("a value")
			}
		case ',', ':':
		default:
			for s.at+1 < len(s.text) && strings.IndexByte(" \t\r\n,:[]{}\"", s.text[s.at+1]) < 0 {
				s.at++
			}
		}
		if depth == 0 {
			s.at++
			return nil
		}
	}
}

// vocabulary reads an object of tokens and their ids.
func (s *scanner) vocabulary() (map[string]uint32, error) {
	ids := make(map[string]uint32, len(s.text)/64)
	err := s.object(func(token string) error {
		number := s.number()
		if number == "" {
			return s.expected("the id of a token")
		}
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return fmt.Errorf("token %q has id %s, expected an integer of 32 bits", token, number)
		}
		ids[token] = uint32(id)
		return nil
	})
	return ids, err
}

// pieces reads a list of pieces and their scores.
func (s *scanner) pieces() (list pieces, err error) {
	err = s.list('[', ']', func() error {
		from := s.at
		var p piece
		text, err := "", s.take('[')
		if err == nil {
			p.text, err = s.string()
		}
		if err == nil {
			if err = s.take(','); err == nil {
				text = s.number()
				p.score, err = strconv.ParseFloat(text, 64)
			}
		}
		if err == nil {
			err = s.take(']')
		}
		if err != nil {
			return fmt.Errorf("expected a piece and its score, found %.40s", s.text[from:])
		}
		list = append(list, p)
		return nil
	})
	return list, err
}

// merges reads a list of pairs, as transformers 5 writes them, or of strings with a space between
// two tokens, as transformers 4 does.
func (s *scanner) merges(size int) ([]merge, error) {
	list := make([]merge, 0, size)
	var pair []string
	err := s.list('[', ']', func() error {
		pair = pair[:0]
		if s.next() == '"' {
			line, err := s.string()
			if err != nil {
				return err
			}
			m, ok := splitMerge(line)
			if !ok {
				return fmt.Errorf("merge %d: expected two tokens and a space between them, found %q", len(list)+1, line)
			}
			list = append(list, m)
			return nil
		}
		if err := s.list('[', ']', func() error {
			token, err := s.string()
			pair = append(pair, token)
			return err
		}); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge %d: expected two tokens, found %q", len(list)+1, pair)
		}
		list = append(list, merge(pair))
		return nil
	})
	return list, err
}
