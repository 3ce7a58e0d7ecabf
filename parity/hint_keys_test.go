package parity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hintKeys reads the keys of all hints from the source of package hints: first arguments of say
// and add, the first field of the types that carry a key, and what is assigned to variables named
// key.
func hintKeys(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	text := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && s != "" {
				found[s] = true
			}
		}
	}
	carriers := []string{"Hint", "variant", "rotation", "mask", "axisOrder"}
	isCarrier := func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return ok && slices.Contains(carriers, id.Name)
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if (name == "say" || name == "add") && len(n.Args) > 0 {
				text(n.Args[0])
			}
		case *ast.CompositeLit:
			if isCarrier(n.Type) && len(n.Elts) > 0 {
				text(n.Elts[0])
			}
			if list, ok := n.Type.(*ast.ArrayType); ok && isCarrier(list.Elt) {
				for _, e := range n.Elts {
					if c, ok := e.(*ast.CompositeLit); ok && c.Type == nil && len(c.Elts) > 0 {
						text(c.Elts[0])
					}
				}
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); !ok || id.Name != "key" || i >= len(n.Rhs) {
					continue
				}
				text(n.Rhs[i])
				if at, ok := n.Rhs[i].(*ast.IndexExpr); ok { // of a map of keys
					if table, ok := at.X.(*ast.CompositeLit); ok {
						for _, e := range table.Elts {
							text(e.(*ast.KeyValueExpr).Value)
						}
					}
				}
			}
		}
		return true
	}
	files, err := filepath.Glob("hints/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of package hints: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, visit)
	}
	var keys []string
	for key := range found {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// TestHintKeys has every key that a hint can have expected by a planted fault, and no other.
func TestHintKeys(t *testing.T) {
	keys := hintKeys(t)
	if len(keys) < 50 || !slices.Contains(keys, "hidden layer") || !slices.Contains(keys, "norm rescale") {
		t.Fatalf("%d keys: %q", len(keys), keys)
	}
	expected := map[string]int{}
	faults := slices.Concat(faults, fluxFaults, kontextFaults, kreaFaults, fillFaults, qwenFaults, seedFaults, inpaintFaults)
	hinted := 0
	for _, f := range faults {
		if f.hint != "" {
			expected[f.hint]++
			hinted++
		}
	}
	for _, key := range keys {
		if expected[key] == 0 {
			t.Errorf("no planted fault expects the hint %q", key)
		}
	}
	for key := range expected {
		if !slices.Contains(keys, key) {
			t.Errorf("a planted fault expects the hint %q, which package hints does not have", key)
		}
	}
	t.Logf("%d of %d planted faults expect a hint, of %d keys", hinted, len(faults), len(keys))
}
