package hooks

import (
	"fmt"
	"strconv"
	"strings"
)

// A Kind is the role of a tensor in a module's call. Tensors of different kinds are
// never compared.
type Kind uint8

const (
	Output Kind = iota // a module's result, or a value of the pipeline
	Input              // an argument
	Inner              // a value that the module computes in between
)

func (k Kind) String() string { return [...]string{"output", "input", "inner value"}[k] }

// A Point identifies a tensor of a module's call. The zero Point is the first output.
type Point struct {
	Kind Kind
	Key  string // position or keyword, with .INDEX for an element of a list; or the name of an inner value
}

// The inner values of attention: q, k and v in the layout of the reference's attention
// function, and q and k before the rotary embedding. Weights are after the softmax,
// [B, H, L, L]; see [Tap.Entropy].
const (
	Q          = "q"
	K          = "k"
	V          = "v"
	QUnrotated = "q.unrotated"
	KUnrotated = "k.unrotated"
	Weights    = "weights"
	Entropy    = "entropy"
)

// innerKeys has all inner values.
var innerKeys = map[string]bool{Q: true, K: true, V: true, QUnrotated: true, KUnrotated: true, Weights: true, Entropy: true}

// String returns the part of a name after the colon, "" for the first output.
func (p Point) String() string {
	switch {
	case p.Kind == Input:
		return "in." + p.Key
	case p.Kind == Inner || p.Key == "":
		return p.Key
	}
	return "out." + p.Key
}

// OnRequest reports whether the tensor is large and should be evaluated only if it was
// asked for by name. A hook that saves every tap skips it.
func (p Point) OnRequest() bool { return p.Kind == Inner && (p.Key == Weights || p.Key == Entropy) }

// A Name is a tensor's name, COMPONENT[.PATH][@STEP][#CALL][:POINT].
type Name struct {
	Module string // or a value of the pipeline
	Step   int    // -1 outside the loop
	Call   int
	Point  Point
}

func (n Name) String() string {
	s := n.Module
	if n.Step >= 0 {
		s += "@" + strconv.Itoa(n.Step)
	}
	if n.Call > 0 {
		s += "#" + strconv.Itoa(n.Call)
	}
	if point := n.Point.String(); point != "" {
		s += ":" + point
	}
	return s
}

// Parent returns a module's path without its last part: "" for a component.
func Parent(module string) string {
	return module[:max(0, strings.LastIndexByte(module, '.'))]
}

// ParseName parses a name. Its String returns the name again.
func ParseName(s string) (Name, error) {
	n := Name{Step: -1}
	rest, point, pointed := strings.Cut(s, ":")
	rest, call, called := strings.Cut(rest, "#")
	module, step, stepped := strings.Cut(rest, "@")
	n.Module = module
	ok := module != ""
	if stepped {
		n.Step, ok = index(step, ok)
	}
	if called {
		n.Call, ok = index(call, ok)
		ok = ok && n.Call > 0 // the first call has no number
	}
	if pointed {
		kind, key, _ := strings.Cut(point, ".")
		switch {
		case innerKeys[point]:
			n.Point = Point{Inner, point}
		case kind == "in" && key != "":
			n.Point = Point{Input, key}
		case kind == "out" && key != "":
			n.Point = Point{Output, key}
		default:
			ok = false
		}
	}
	if !ok {
		return Name{}, fmt.Errorf("tensor name %q: expected COMPONENT[.PATH][@STEP][#CALL][:POINT], "+
			"where POINT is in.KEY, out.KEY or an inner value such as q", s)
	}
	return n, nil
}

// NameOf is ParseName for names that other programs may have chosen: one that is not a tap's is that of a
// module.
func NameOf(s string) Name {
	n, err := ParseName(s)
	if err != nil {
		return Name{Module: s, Step: -1}
	}
	return n
}

// index parses digits without a sign or leading zeros.
func index(s string, ok bool) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && n >= 0 && strconv.Itoa(n) == s
}
