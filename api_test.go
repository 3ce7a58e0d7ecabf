package gomflux_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// promised lists the packages that doc.go promises to keep compatible.
var promised = []string{module, module + "/picture", module + "/models/shapes"}

// TestPromised checks that the exported API of the promised packages uses only
// their own types and those of the standard library.
func TestPromised(t *testing.T) {
	var stderr bytes.Buffer
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, promised...)...)
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[name] = file
	}
	compiled := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, path := range promised {
		p, err := compiled.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		w := &apiWalk{seen: map[types.Type]bool{}}
		names := 0
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				names++
				w.visit(name, o.Type())
			}
		}
		if names == 0 {
			t.Errorf("%s: nothing is exported", path)
		}
		for _, found := range w.found {
			t.Errorf("%s: %s", path, found)
		}
	}
}

// TestPromisedFinds checks that TestPromised finds other types wherever they are.
func TestPromisedFinds(t *testing.T) {
	fset := token.NewFileSet()
	check := func(path, source string, from types.Importer) *types.Package {
		f, err := parser.ParseFile(fset, path+".go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := (&types.Config{Importer: from}).Check(path, fset, []*ast.File{f}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	other := check("example.com/other",
		"package other; type T struct{}; type Base struct{}; func (Base) M() {}; const C T2 = 1; type T2 int", nil)
	for name, test := range map[string]struct{ source, want string }{
		"a field":             {"type X struct { F map[string][]*other.T }", "X.F"},
		"a field inside":      {"type X struct { f y; G []y }; type y struct { H other.T }", "X.G.H"},
		"an embedded type":    {"type X struct { other.Base }", "X.Base"},
		"what it is":          {"type X other.T2", ""},
		"an alias":            {"type X = other.T", "X"},
		"a promoted method":   {"type X struct { y }; type y struct{}; func (y) M(other.T) {}", "X.M"},
		"a method":            {"type X int; func (*X) M() other.T { panic(0) }", "X.M"},
		"a method of two":     {"type X interface { M(func() chan other.T) }", "X.M"},
		"a function":          {"func X(...other.T) {}", "X"},
		"a constant":          {"const X = other.C", "X"},
		"a variable":          {"var X = new(other.T)", "X"},
		"a type argument":     {"var X G[other.T]; type G[T any] struct{}", "X"},
		"nothing":             {"type X struct { f other.T }; func (X) m(other.T) {}; var x other.T; type y struct { F other.T }", ""},
		"something it has":    {"type X struct { E error; F []X }; func (X) Error() string { return \"\" }", ""},
		"a constraint's type": {"func X[T interface{ M(other.T) }]() {}", "X.M"},
	} {
		p := check("example.com/api", "package api; import \"example.com/other\"; var _ other.T; "+test.source, importing{other})
		w := &apiWalk{seen: map[types.Type]bool{}, own: []string{"example.com/api"}}
		for _, n := range p.Scope().Names() {
			if o := p.Scope().Lookup(n); o.Exported() {
				w.visit(n, o.Type())
			}
		}
		if test.want == "" && len(w.found) > 0 || test.want != "" && (len(w.found) == 0 || !strings.HasPrefix(w.found[0], test.want+" ")) {
			t.Errorf("%s: found %q, expected it in %q", name, w.found, test.want)
		}
	}
}

type importing struct{ *types.Package }

func (i importing) Import(string) (*types.Package, error) { return i.Package, nil }

// An apiWalk visits the exported parts of types.
type apiWalk struct {
	own   []string // packages besides those that are promised
	seen  map[types.Type]bool
	found []string
}

// visit checks the type of an identifier.
func (w *apiWalk) visit(at string, typ types.Type) {
	if w.seen[typ] {
		return
	}
	switch typ := typ.(type) {
	case *types.Alias:
		w.visit(at, types.Unalias(typ))
	case *types.Named:
		if p := typ.Obj().Pkg(); p != nil && !w.allowed(p.Path()) {
			w.found = append(w.found, fmt.Sprintf("%s has the type %s", at, typ))
			return
		}
		for arg := range typ.TypeArgs().Types() {
			w.visit(at, arg)
		}
		if p := typ.Obj().Pkg(); p == nil || standard(p.Path()) {
			return
		}
		w.seen[typ] = true
		for param := range typ.TypeParams().TypeParams() {
			w.visit(at, param.Constraint())
		}
		w.visit(at, typ.Underlying())
		if types.IsInterface(typ) {
			return
		}
		for method := range types.NewMethodSet(types.NewPointer(typ)).Methods() {
			if method.Obj().Exported() {
				w.visit(at+"."+method.Obj().Name(), method.Type())
			}
		}
	case *types.Struct:
		for f := range typ.Fields() {
			if f.Exported() {
				w.visit(at+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range typ.Methods() {
			if m.Exported() {
				w.visit(at+"."+m.Name(), m.Type())
			}
		}
		for e := range typ.EmbeddedTypes() {
			w.visit(at, e)
		}
	case *types.Union:
		for term := range typ.Terms() {
			w.visit(at, term.Type())
		}
	case *types.Signature:
		for param := range typ.TypeParams().TypeParams() {
			w.visit(at, param.Constraint())
		}
		w.visit(at, typ.Params())
		w.visit(at, typ.Results())
	case *types.Tuple:
		for v := range typ.Variables() {
			w.visit(at, v.Type())
		}
	case *types.Map:
		w.visit(at, typ.Key())
		w.visit(at, typ.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays and channels
		w.visit(at, typ.Elem())
	}
}

func (w *apiWalk) allowed(path string) bool {
	return standard(path) || slices.Contains(promised, path) || slices.Contains(w.own, path)
}

// standard reports whether a package is part of the standard library.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
