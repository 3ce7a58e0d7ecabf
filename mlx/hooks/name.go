package hooks

import (
	"fmt"
	"strconv"
	"strings"
)

// A Kind says on which side of a module a tensor is. Tensors of unlike kinds
// are never compared.
type Kind uint8

const (
	Output Kind = iota // what a module returned, or a value of the pipeline
	Input              // what it was called with
	Inner              // what it computed in between
)

func (k Kind) String() string { return [...]string{"output", "input", "inner value"}[k] }

// A Point is which tensor of a module's call is meant. The zero Point is its
// first output.
type Point struct {
	Kind Kind
	Key  string // position or keyword, with .INDEX inside lists; an inner value's name
}

// The inner values of attention: what enters it, in the layout that the
// reference's attention function takes, and the same before the rotary
// embedding. Weights are after the softmax, [B, H, L, L]; see [Tap.Entropy].
const (
	Q          = "q"
	K          = "k"
	V          = "v"
	QUnrotated = "q.unrotated"
	KUnrotated = "k.unrotated"
	Weights    = "weights"
	Entropy    = "entropy"
)

// innerKeys are all of them.
var innerKeys = map[string]bool{Q: true, K: true, V: true, QUnrotated: true, KUnrotated: true, Weights: true, Entropy: true}

// String is the part of a name behind the colon, "" for the first output.
func (p Point) String() string {
	switch {
	case p.Kind == Input:
		return "in." + p.Key
	case p.Kind == Inner || p.Key == "":
		return p.Key
	}
	return "out." + p.Key
}

// OnRequest says whether the tensor is only computed when somebody evaluates
// it, because it is large. Who takes every tap leaves these alone.
func (p Point) OnRequest() bool { return p.Kind == Inner && (p.Key == Weights || p.Key == Entropy) }

// A Name is a tensor's name, COMPONENT[.PATH][@STEP][#CALL][:POINT].
type Name struct {
	Module string // or a value of the pipeline
	Step   int    // -1 where there is none
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

// ParseName reads a name. Its String is the name again.
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
		return Name{}, fmt.Errorf("tensor name %q: expected COMPONENT[.PATH][@STEP][#CALL][:POINT], where POINT is in.KEY, out.KEY or an inner value such as q", s)
	}
	return n, nil
}

// index reads digits without a sign or a zero before them.
func index(s string, ok bool) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && n >= 0 && strconv.Itoa(n) == s
}
