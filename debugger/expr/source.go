package expr

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Names in translated source.
const (
	loadName     = "łoad" // load, which is a statement in Starlark
	powName      = "pów"
	sliceName    = "ślice"
	ellipsisName = "ęllipsis"
)

// tokens finds the tokens of a source: strings, comments, numbers, names and attributes, operators.
var tokens = regexp.MustCompile(`(?s)` + strings.Join([]string{
	`"""(?:\\.|.)*?"""|'''(?:\\.|.)*?'''`, `"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`, `#[^\n]*`,
	`(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*`, `\.?[\pL_][\pL\pN_]*`, `\.\.\.`, `\*\*=?`, `[ \t\r]+|\\\n`, `.`,
}, "|"))

// keywords are words that are not operands.
var keywords = []string{"and", "or", "not", "in", "if", "else", "elif", "lambda", "return", "def", "for", "while",
	"pass", "break", "continue"}

// translate replaces what Starlark's parser does not know: x ** y becomes a call of powName, and
// t[0, 1:2] and t[..., 0] have calls of sliceName and ellipsisName. Lines stay as they are.
func translate(source string) string {
	open := []*frame{{}}
	for _, text := range tokens.FindAllString(source, -1) {
		top := open[len(open)-1]
		switch {
		case strings.ContainsAny(text[:1], "([{"):
			open = append(open, &frame{open: text, index: text == "[" && top.operand(len(top.items)) >= 0})
		case strings.ContainsAny(text[:1], ")]}"):
			if open = open[:len(open)-1]; len(open) == 0 {
				return source
			}
			open[len(open)-1].add(top.open+top.text()+text, operand)
		case text == "load":
			top.add(loadName, operand)
		case len(open) == 1 && (text == "\n" || text == ";" || text[0] == '#'):
			top.close()
			top.add(text, other)
		case strings.TrimSpace(text) == "", text == "\\\n", text[0] == '#':
			top.add(text, blank)
		case text == "**=" && top.operand(len(top.items)) >= 0:
			top.add("= "+powName+"("+top.items[top.operand(len(top.items))].text+",", other)
			top.assigns = true
		case slices.Contains(keywords, text):
			top.add(text, other)
		case strings.IndexFunc(text, isOperator) == 0:
			top.add(text, other)
		default:
			top.add(text, operand)
		}
	}
	if len(open) > 1 {
		return source
	}
	open[0].close()
	return open[0].text()
}

// isOperator reports whether a token that begins with c is not an operand.
func isOperator(c rune) bool {
	return c != '_' && c != '.' && c != '"' && c != '\'' && !unicode.IsLetter(c) && !unicode.IsDigit(c)
}

// A frame has the items between two brackets, or outside of all.
type frame struct {
	open    string
	index   bool // of t[...], not of a list
	assigns bool // whether x **= ... is not closed yet
	items   []piece
}

type kind int

const (
	operand kind = iota // with its attributes, calls and indices
	blank
	other
)

type piece struct {
	text string
	kind kind
}

func (f *frame) add(text string, k kind) {
	if at := f.operand(len(f.items)); k == operand && at >= 0 && strings.ContainsAny(text[:1], ".([") && text != "..." {
		text = join(f.items[at:]) + text
		f.items = f.items[:at]
	}
	f.items = append(f.items, piece{text, k})
}

// close ends x **= ...
func (f *frame) close() {
	if f.assigns {
		f.add(")", other)
	}
	f.assigns = false
}

// operand returns the index of the operand that ends before item i, or -1.
func (f *frame) operand(i int) int {
	for i--; i >= 0 && f.items[i].kind == blank; i-- {
	}
	if i >= 0 && f.items[i].kind == operand {
		return i
	}
	return -1
}

func join(items []piece) string {
	var out strings.Builder
	for _, x := range items {
		out.WriteString(x.text)
	}
	return out.String()
}

// text returns the translated items.
func (f *frame) text() string {
	for i := len(f.items) - 1; i > 0; i-- { // ** applies from right to left, before a sign on its left
		left, right := f.operand(i), i+1
		for right < len(f.items) && (f.items[right].kind == blank || strings.Contains("+-~", f.items[right].text)) {
			right++
		}
		if f.items[i].text == "**" && left >= 0 && right < len(f.items) && f.items[right].kind == operand {
			call := powName + "(" + join(f.items[left:i]) + "," + join(f.items[i+1:right+1]) + ")"
			f.items = slices.Replace(f.items, left, right+1, piece{call, operand})
			i = left
		}
	}
	has := func(text string) bool {
		return slices.ContainsFunc(f.items, func(x piece) bool { return x.text == text })
	}
	if f.index && (has("...") || has(",") && has(":")) {
		return f.axes()
	}
	return join(f.items)
}

// axes returns the items of t[...], of which some are slices or "...".
func (f *frame) axes() string {
	var axes []string
	bounds := []string{""}
	for _, x := range append(f.items, piece{",", other}) {
		last := &bounds[len(bounds)-1]
		switch {
		case x.text == ":":
			bounds = append(bounds, "")
		case x.text == "...":
			*last += ellipsisName
		case x.text != ",":
			*last += x.text
		default:
			if len(bounds) > 1 {
				for i := range bounds {
					if strings.TrimSpace(bounds[i]) == "" {
						bounds[i] += "None"
					}
				}
				bounds = []string{sliceName + "(" + strings.Join(bounds, ",") + ")"}
			}
			axes, bounds = append(axes, bounds[0]), []string{""}
		}
	}
	return strings.Join(axes, ",")
}
