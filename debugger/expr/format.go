package expr

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/mlx"
)

// Limits of the text of a value, which goes through the session's socket, and whose value can
// contain itself.
const (
	maxText  = 1e6 // bytes
	maxDepth = 100 // of values in values
)

// repr returns the text of a value, as Python's repr does. Numbers that are a float32 value are
// as short as possible to identify that value.
func repr(v starlark.Value) string {
	var out strings.Builder
	write(&out, v, 0)
	return out.String()
}

// str is repr, but a string is itself.
func str(v starlark.Value) string {
	if s, ok := v.(starlark.String); ok {
		return string(s)
	}
	return repr(v)
}

// brief returns the text of a value for an error.
func brief(v starlark.Value) (text string) {
	const most = 80
	if err := mlx.Try(func() { text = repr(v) }); err != nil || len(text) > most {
		return "(a long " + v.Type() + ")"
	}
	return text
}

func write(out *strings.Builder, v starlark.Value, depth int) {
	if depth > maxDepth {
		fail("a %s is nested more than %d deep", v.Type(), maxDepth)
	}
	each := func(open string, v starlark.Iterable, end string) {
		separator := open
		for x := range starlark.Elements(v) {
			out.WriteString(separator)
			write(out, x, depth+1)
			separator = ", "
		}
		if separator == open {
			out.WriteString(open)
		}
		out.WriteString(end)
	}
	switch v := v.(type) {
	case nil:
		out.WriteString("None")
	case starlark.Float:
		out.WriteString(floatText(float64(v)))
	case *starlark.List:
		each("[", v, "]")
	case starlark.Tuple:
		if len(v) == 1 {
			each("(", v, ",)")
		} else {
			each("(", v, ")")
		}
	case *starlark.Set:
		each("set([", v, "])")
	case *starlark.Dict:
		separator := "{"
		for k, x := range v.Entries() {
			out.WriteString(separator)
			write(out, k, depth+1)
			out.WriteString(": ")
			write(out, x, depth+1)
			separator = ", "
		}
		if v.Len() == 0 {
			out.WriteString("{")
		}
		out.WriteString("}")
	case *starlark.Function:
		out.WriteString("<function " + strings.TrimPrefix(v.Name(), "$") + ">")
	case *starlark.Builtin:
		out.WriteString("<built-in function " + v.Name() + ">")
	default:
		out.WriteString(v.String())
	}
	if out.Len() > maxText {
		fail("the text of the value is longer than %s", size(maxText))
	}
}

// floatText formats a float as Python does, with as few digits as identify the float32 value, if it
// is one, or else the float64 value.
func floatText(v float64) string {
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
func interpolate(format string, args starlark.Value) starlark.Value {
	rest, ok := args.(starlark.Tuple)
	if !ok {
		rest = starlark.Tuple{args}
	}
	dict, isDict := args.(*starlark.Dict)
	out := conversion.ReplaceAllStringFunc(format, func(text string) string {
		m := conversion.FindStringSubmatch(text)
		var v starlark.Value
		switch {
		case m[5] == "%":
			return "%"
		case isDict && strings.HasPrefix(text, "%("):
			if v, ok, _ = dict.Get(starlark.String(m[1])); !ok {
				fail("the format's key %s is not in the dict", brief(starlark.String(m[1])))
			}
		case strings.HasPrefix(text, "%("):
			fail("%%(%s) in a format: expected a dict after %%", m[1])
		case len(rest) == 0:
			fail("not enough values for the format")
		default:
			v, rest = rest[0], rest[1:]
		}
		return convert("%"+m[2]+m[3]+m[4], m[5], v)
	})
	if len(rest) > 0 && !isDict {
		fail("too many values for the format")
	}
	return starlark.String(out)
}

// convert formats a value with Go's verb, which has Python's meaning.
func convert(format, verb string, v starlark.Value) string {
	if verb != "s" && verb != "r" {
		v = number(v)
	}
	switch verb {
	case "s":
		return fmt.Sprintf(format+"s", str(v))
	case "r":
		return fmt.Sprintf(format+"s", repr(v))
	case "d", "i", "x", "X", "o":
		n, err := starlark.NumberToInt(v)
		if err != nil {
			fail("%%%s of %s: expected a number", verb, kindOf(v))
		}
		return fmt.Sprintf(format+strings.Replace(verb, "i", "d", 1), n.BigInt())
	case "e", "E", "f", "F", "g", "G":
		f, ok := starlark.AsFloat(v)
		if !ok {
			fail("%%%s of %s: expected a number", verb, kindOf(v))
		}
		if !strings.Contains(format, ".") {
			format += ".6"
		}
		return fmt.Sprintf(format+verb, f)
	case "c":
		if s, ok := v.(starlark.String); ok && len(s) > 0 {
			return string([]rune(string(s))[:1])
		}
	}
	fail("a format with %%%s: expected s, r, d, x, o, e, f or g", verb)
	return ""
}
