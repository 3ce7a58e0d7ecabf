package expr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// options are the features of Starlark that are on. Recursion is off, so that calls cannot
// exhaust Go's stack.
var options = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true}

// A program is rewritten and compiled source.
type program struct {
	name    string // in the positions of errors
	program *starlark.Program
}

// compile parses, rewrites and compiles source. Errors are one line.
func (in *Interpreter) compile(source string, condition bool) (*program, error) {
	source = strings.TrimRight(strings.ReplaceAll(source, "\r\n", "\n"), " \t\n")
	if !strings.Contains(source, "\n") {
		source = strings.TrimSpace(source)
	}
	if len(source) > maxSource {
		return nil, fmt.Errorf("the expression has %d bytes, expected at most %d", len(source), maxSource)
	}
	axes := sliceAxes(source)
	text, powers, err := scan(axes)
	if err != nil {
		return nil, err
	}
	w := &rewriter{powers: powers, moved: axes != source, assigned: map[string]bool{}, checked: map[syntax.Expr]bool{}}
	in.compiled++
	p := &program{name: fmt.Sprint("expression ", in.compiled)}
	f, err := options.Parse(p.name, text, 0)
	if err != nil {
		return nil, w.parseError(err)
	}
	if len(f.Stmts) == 0 {
		return nil, errors.New("the expression is empty")
	}
	if condition {
		if len(f.Stmts) != 1 {
			return nil, fmt.Errorf("line %d: a condition is a single expression", syntax.Start(f.Stmts[1]).Line)
		}
		if _, ok := f.Stmts[0].(*syntax.ExprStmt); !ok {
			return nil, errors.New("a condition is an expression, not a statement (== compares)")
		}
	}
	w.file(f)
	if w.err != nil {
		return nil, w.err
	}
	known := func(name string) bool {
		return in.names.Has(name) && (name != "compare" || in.Compare != nil) || w.assigned[name] || in.promised[name] ||
			slices.Contains(stopNames, name)
	}
	if p.program, err = starlark.FileProgram(f, known); err != nil {
		return nil, in.resolveError(err, w)
	}
	if condition {
		maps.Copy(in.promised, w.assigned)
	}
	return p, nil
}

// place returns a position for an error, without the column if columns have changed.
func (w *rewriter) place(pos syntax.Position) string {
	if w.moved {
		return fmt.Sprintf("line %d: ", pos.Line)
	}
	return fmt.Sprintf("line %d, column %d: ", pos.Line, pos.Col)
}

// missing has hints for parts of Python that Starlark does not have, by what errors begin with.
var missing = map[string]string{
	"got import":         "there is nothing to import; math is defined",
	"got from":           "there is nothing to import; math is defined",
	"got is":             "== compares",
	"got string literal": "there are no f-strings: \"%.3f\" % x",
}

// parseError returns an error of the syntax as one line.
func (w *rewriter) parseError(err error) error {
	var e syntax.Error
	if errors.As(err, &e) {
		hint := ""
		for begin, text := range missing {
			if strings.HasPrefix(e.Msg, begin) {
				hint = " (" + text + ")"
			}
		}
		return oneLine(w.place(e.Pos), errors.New(e.Msg+hint))
	}
	return oneLine("", err)
}

// resolveError returns the first error about names as one line.
func (in *Interpreter) resolveError(err error, w *rewriter) error {
	var list resolve.ErrorList
	if !errors.As(err, &list) || len(list) == 0 {
		return oneLine("", err)
	}
	e := list[0]
	at := w.place(e.Pos)
	rest, ok := strings.CutPrefix(e.Msg, "undefined: ")
	if !ok {
		return oneLine(at, errors.New(strings.ReplaceAll(e.Msg, "$", "")))
	}
	name, _, _ := strings.Cut(rest, " ")
	names := in.known()
	names = slices.AppendSeq(names, maps.Keys(w.assigned))
	names = slices.AppendSeq(names, maps.Keys(in.promised))
	hint := "out is the tensor of the stop"
	if similar := checkpoint.Similar(name, names, 3); len(similar) > 0 {
		hint = "similar: " + strings.Join(similar, ", ")
	}
	return oneLine(at, fmt.Errorf("name %s is not defined (%s)", name, hint))
}

// A position is that of a character in the source, as syntax counts them.
type position struct{ line, col int32 }

// A scanner finds the operators ** of the source, which Starlark does not have.
type scanner struct {
	text    []rune
	i       int
	at      position
	operand bool // whether the last token can be the left operand
	nesting int
	changed bool
	powers  map[position]bool
}

// loadName is what the word load becomes, which is a statement in Starlark.
const loadName = "łoad"

// scan replaces each operator ** by //, which the rewriter then changes back at the positions that
// it returns, and the word load by loadName. It also refuses source that is so nested that parsing it
// could exhaust the stack.
func scan(source string) (string, map[position]bool, error) {
	s := &scanner{text: []rune(source), at: position{1, 1}, powers: map[position]bool{}}
	for s.i < len(s.text) {
		if err := s.token(); err != nil {
			return "", nil, err
		}
	}
	if !s.changed {
		return source, nil, nil
	}
	return string(s.text), s.powers, nil
}

// skip moves over n characters.
func (s *scanner) skip(n int) {
	for range n {
		if s.i >= len(s.text) {
			return
		}
		if s.at.col++; s.text[s.i] == '\n' {
			s.at = position{s.at.line + 1, 1}
		}
		s.i++
	}
}

func (s *scanner) has(prefix string) bool {
	for i, c := range []rune(prefix) {
		if s.i+i >= len(s.text) || s.text[s.i+i] != c {
			return false
		}
	}
	return true
}

func (s *scanner) token() error {
	switch c := s.text[s.i]; {
	case c == '#':
		for s.i < len(s.text) && s.text[s.i] != '\n' {
			s.skip(1)
		}
	case c == '"' || c == '\'':
		s.quoted(c)
		s.operand = true
	case isWord(c):
		start := s.i
		for s.i < len(s.text) && isWord(s.text[s.i]) {
			s.skip(1)
		}
		word := string(s.text[start:s.i])
		if word == "load" {
			copy(s.text[start:], []rune(loadName))
			s.changed = true
		}
		s.operand = !slices.Contains(keywords, word)
	case s.has("**"):
		if s.operand {
			s.powers[s.at], s.changed = true, true
			s.text[s.i], s.text[s.i+1] = '/', '/'
		}
		s.skip(2)
		s.operand = false
	default:
		switch c {
		case '(', '[', '{':
			s.nesting++
		case ')', ']', '}':
			s.nesting--
		}
		if s.nesting > maxNesting {
			return fmt.Errorf("line %d, column %d: more than %d open brackets", s.at.line, s.at.col, maxNesting)
		}
		if c != ' ' && c != '\t' && c != '\n' && c != '\\' {
			s.operand = c == ')' || c == ']' || c == '}'
		}
		s.skip(1)
	}
	return nil
}

// quoted skips a string.
func (s *scanner) quoted(quote rune) {
	end := string(quote)
	if triple := strings.Repeat(end, 3); s.has(triple) {
		end = triple
	}
	s.skip(len(end))
	for s.i < len(s.text) && !s.has(end) {
		if s.text[s.i] == '\\' { // in raw strings too, a quote after \ does not end the string
			s.skip(1)
		}
		s.skip(1)
	}
	s.skip(len(end))
}

func isWord(c rune) bool {
	return c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c > 127
}

// keywords are words after which ** is not an operator.
var keywords = []string{"and", "or", "not", "in", "if", "else", "elif", "lambda", "return", "for", "while"}
