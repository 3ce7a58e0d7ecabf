package gomflux_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// networks are the packages whose modules pass their tensors by hooks.
var networks = []string{"transformer", "vae", "textenc", "mlx/nn"}

// TestTaps checks that every call of Tap, Tap2, TapAll and TapImage has as many
// inputs as its module declares in the tag of its nn.Module, where a mistake would
// otherwise show only when somebody observes the module.
func TestTaps(t *testing.T) {
	for _, pkg := range networks {
		set, found := token.NewFileSet(), 0
		files := parsePackage(t, set, pkg)
		modules := moduleTags(files)
		for _, file := range files {
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok {
					found += checkTaps(t, set, f, modules)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no taps found", pkg)
		}
	}
}

// parsePackage parses the files of a package that are not tests.
func parsePackage(t *testing.T, set *token.FileSet, pkg string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(pkg + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, filepath.ToSlash(name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// moduleTags returns the tag of nn.Module in every struct that embeds it, also by a pointer to such a struct.
func moduleTags(files []*ast.File) map[string]reflect.StructTag {
	tags, outer := map[string]reflect.StructTag{}, map[string]string{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					if len(field.Names) == 0 && isModule(field.Type) {
						tags[spec.Name.Name] = tagOf(field)
					}
					if star, ok := field.Type.(*ast.StarExpr); ok && len(field.Names) == 0 {
						if inner, ok := star.X.(*ast.Ident); ok {
							outer[inner.Name] = spec.Name.Name
						}
					}
				}
			}
			return true
		})
	}
	for inner, name := range outer {
		if tag, ok := tags[inner]; ok {
			tags[name] = tag
		}
	}
	return tags
}

func isModule(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "Module" // in package nn
	case *ast.SelectorExpr:
		return e.Sel.Name == "Module"
	}
	return false
}

func tagOf(field *ast.Field) reflect.StructTag {
	if field.Tag == nil {
		return ""
	}
	text, _ := strconv.Unquote(field.Tag.Value)
	return reflect.StructTag(text)
}

// checkTaps checks the taps in f and returns how many there are. Package nn's own
// methods of Module are not taps of a module.
func checkTaps(t *testing.T, set *token.FileSet, f *ast.FuncDecl, modules map[string]reflect.StructTag) (found int) {
	receiver, module := receiverOf(f)
	if module == "Module" || f.Body == nil {
		return 0
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Tap", "Tap2", "TapAll", "TapImage"}, selector.Sel.Name) {
			return true
		}
		found++
		at := set.Position(call.Pos())
		tag, ok := modules[module]
		if x, isIdent := selector.X.(*ast.Ident); !ok || !isIdent || x.Name != receiver {
			t.Errorf("%s: a tap of something else than the receiver, which this test cannot check", at)
			return true
		}
		outputs := 1
		if selector.Sel.Name == "Tap2" {
			outputs = 2
		}
		names, declared := strings.Fields(tag.Get("in")), tag.Get("in") != ""
		switch inputs := len(call.Args) - outputs; {
		case call.Ellipsis.IsValid():
			t.Errorf("%s: a tap with inputs..., which this test cannot count", at)
		case declared && inputs != len(names):
			t.Errorf("%s: %s is tapped with %d inputs, but its tag declares %d: %q", at, module, inputs, len(names), names)
		case !declared && inputs > 1:
			t.Errorf("%s: %s is tapped with %d inputs, but declares none by a tag in:\"...\"", at, module, inputs)
		}
		if keys := strings.Fields(tag.Get("out")); len(keys) > 0 && selector.Sel.Name == "Tap2" && len(keys) != 1 {
			t.Errorf("%s: %s is tapped with 2 outputs, but its tag declares %q after the first", at, module, keys)
		}
		return true
	})
	return found
}

// receiverOf returns the name and the type of a method's receiver.
func receiverOf(f *ast.FuncDecl) (name, typ string) {
	if f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
		return "", ""
	}
	star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return "", ""
	}
	ident, ok := star.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	return f.Recv.List[0].Names[0].Name, ident.Name
}

// TestExcerpts compares the Go code in docs/reading-the-networks.md with the source.
func TestExcerpts(t *testing.T) {
	page, err := os.ReadFile("docs/reading-the-networks.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("transformer/flux.go")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(page), "```")
	if len(parts) < 5 {
		t.Fatal("no excerpts found")
	}
	for i := 1; i < len(parts); i += 2 {
		if excerpt := strings.TrimPrefix(parts[i], "go\n"); !strings.Contains(string(source), excerpt) {
			t.Errorf("transformer/flux.go does not have\n%s", excerpt)
		}
	}
}
