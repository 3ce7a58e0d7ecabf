package expr

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.starlark.net/starlark"
)

// repr returns the text of a value, as Python's repr does. Numbers that are a float32 value are
// as short as possible to identify that value. The text has at most the given number of bytes.
func repr(v starlark.Value, most int) (string, error) {
	p := &printer{most: most}
	if err := p.value(v, 0); err != nil {
		return "", err
	}
	return p.text.String(), nil
}

// brief returns the text of a value for an error.
func brief(v starlark.Value) string {
	const most = 80
	text, err := repr(v, most)
	if err != nil {
		return "(a long " + v.Type() + ")"
	}
	return text
}

// str is repr, but a string is itself.
func str(v starlark.Value, most int) (string, error) {
	if s, ok := v.(starlark.String); ok {
		return string(s), nil
	}
	return repr(v, most)
}

type printer struct {
	text strings.Builder
	most int
}

func (p *printer) write(s string) error {
	if p.text.Len()+len(s) > p.most {
		return fmt.Errorf("the text of the value is longer than %s", size(p.most))
	}
	p.text.WriteString(s)
	return nil
}

func (p *printer) value(v starlark.Value, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("a %s is nested more than %d deep", v.Type(), maxNesting)
	}
	switch v := v.(type) {
	case nil:
		return p.write("None")
	case starlark.Float:
		return p.write(number(float64(v)))
	case starlark.String:
		if len(v) > p.most {
			return p.write(string(v))
		}
		return p.write(v.String())
	case *starlark.List:
		return p.list("[", v, depth, "]")
	case starlark.Tuple:
		if len(v) == 1 {
			return p.list("(", v, depth, ",)")
		}
		return p.list("(", v, depth, ")")
	case *starlark.Set:
		return p.list("set([", v, depth, "])")
	case *starlark.Dict:
		return p.dict(v, depth)
	case *starlark.Function:
		return p.write("<function " + strings.TrimPrefix(v.Name(), "$") + ">")
	case *starlark.Builtin:
		return p.write("<built-in function " + v.Name() + ">")
	}
	return p.write(v.String())
}

func (p *printer) list(open string, v starlark.Iterable, depth int, end string) error {
	if err := p.write(open); err != nil {
		return err
	}
	first := true
	for x := range starlark.Elements(v) {
		if !first {
			if err := p.write(", "); err != nil {
				return err
			}
		}
		first = false
		if err := p.value(x, depth+1); err != nil {
			return err
		}
	}
	return p.write(end)
}

func (p *printer) dict(v *starlark.Dict, depth int) error {
	separator := "{"
	for k, x := range v.Entries() {
		if err := p.write(separator); err != nil {
			return err
		}
		if err := p.value(k, depth+1); err != nil {
			return err
		}
		if err := p.write(": "); err != nil {
			return err
		}
		if err := p.value(x, depth+1); err != nil {
			return err
		}
		separator = ", "
	}
	if v.Len() == 0 {
		return p.write("{}")
	}
	return p.write("}")
}

// number formats a float as Python does, with as few digits as identify the float32 value, if it
// is one, or else the float64 value.
func number(v float64) string {
	bits := 64
	if float64(float32(v)) == v {
		bits = 32
	}
	switch size := math.Abs(v); {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	case size != 0 && size < 1e-4 || size >= 1e16:
		return strconv.FormatFloat(v, 'e', -1, bits)
	}
	text := strconv.FormatFloat(v, 'f', -1, bits)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// conversion is one of the conversions of a format: flags, width, precision, type.
var conversion = regexp.MustCompile(`%(?:\(([^)]*)\))?([-+ 0#]*)(\d*)(\.\d+)?(.?)`)

// interpolate returns format % args, with flags, width and precision as in Python.
func (r *run) interpolate(format string, args starlark.Value) (starlark.Value, error) {
	rest, ok := args.(starlark.Tuple)
	if !ok {
		rest = starlark.Tuple{args}
	}
	const maxConversions = 100_000
	if n := strings.Count(format, "%"); n > maxConversions {
		return nil, fmt.Errorf("a format with %d values: at most %d are possible", n, maxConversions)
	}
	var out strings.Builder
	at := 0
	for _, m := range conversion.FindAllStringSubmatchIndex(format, -1) {
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return format[m[2*i]:m[2*i+1]]
		}
		out.WriteString(format[at:m[0]])
		at = m[1]
		if group(5) == "%" {
			out.WriteByte('%')
			continue
		}
		var v starlark.Value
		if key := group(1); m[2] >= 0 {
			dict, ok := args.(starlark.Mapping)
			if !ok {
				return nil, fmt.Errorf("%%(%s) in a format: expected a dict after %%", key)
			}
			found, has, err := dict.Get(starlark.String(key))
			if err != nil || !has {
				return nil, fmt.Errorf("the format's key %s is not in the dict", brief(starlark.String(key)))
			}
			v = found
		} else if len(rest) == 0 {
			return nil, fmt.Errorf("not enough values for the format")
		} else {
			v, rest = rest[0], rest[1:]
		}
		text, err := convert(group(2), group(3), group(4), group(5), v)
		if err != nil {
			return nil, err
		}
		if err := r.checkText(out.Len() + len(text)); err != nil {
			return nil, err
		}
		out.WriteString(text)
	}
	if _, isMapping := args.(starlark.Mapping); len(rest) > 0 && !isMapping {
		return nil, fmt.Errorf("too many values for the format")
	}
	out.WriteString(format[at:])
	return starlark.String(out.String()), r.checkText(out.Len())
}

// convert formats a value with Go's verb, which has Python's meaning.
func convert(flags, width, precision, verb string, v starlark.Value) (string, error) {
	if n, _ := strconv.Atoi(width); len(width) > 3 || len(precision) > 4 || n > 200 || len(flags) > 5 {
		return "", fmt.Errorf("a format with width %s%s: at most 200 are possible", width, precision)
	}
	if t, ok := v.(*tensor); ok && verb != "s" && verb != "r" {
		x, err := t.item()
		if err != nil {
			return "", fmt.Errorf("%%%s of a tensor: %w", verb, err)
		}
		v = x
	}
	format := "%" + flags + width + precision
	switch verb {
	case "s", "r":
		text, err := str(v, maxText)
		if verb == "r" && err == nil {
			text, err = repr(v, maxText)
		}
		return fmt.Sprintf(format+"s", text), err
	case "d", "i", "x", "X", "o":
		n, err := starlark.NumberToInt(v)
		if err != nil {
			return "", fmt.Errorf("%%%s of %s: expected a number", verb, kindOf(v))
		}
		return fmt.Sprintf(format+strings.Replace(verb, "i", "d", 1), n.BigInt()), nil
	case "e", "E", "f", "F", "g", "G":
		f, ok := starlark.AsFloat(v)
		if !ok {
			return "", fmt.Errorf("%%%s of %s: expected a number", verb, kindOf(v))
		}
		if precision == "" && strings.EqualFold(verb, "g") {
			format += ".6" // Go's %g has as many digits as needed
		} else if precision == "" {
			format += ".6"
		}
		return fmt.Sprintf(format+verb, f), nil
	case "c":
		if s, ok := v.(starlark.String); ok && len(s) > 0 {
			return string([]rune(string(s))[:1]), nil
		}
	}
	return "", fmt.Errorf("a format with %%%s: expected s, r, d, x, o, e, f or g", verb)
}
