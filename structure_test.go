package gomflux_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

const module = "github.com/gomflux/gomflux"

// goFiles parses the Go files other than tests.
func goFiles(t *testing.T, each func(name string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err == nil {
			each(filepath.ToSlash(name), f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layers are the rows of the table of packages in docs/architecture.md.
func layers(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Parts")
	table, _, _ = strings.Cut(table, "\nThe top level")
	rows := map[string]int{}
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			rows[name[1]] = i
		}
	}
	rows["."] = rows["gomflux"]
	if len(rows) < 30 {
		t.Fatalf("%d packages in the table of docs/architecture.md", len(rows))
	}
	return rows
}

// TestImportsGoUpward compares the imports of every package with the table in
// docs/architecture.md: a package may import those above it and those in its row.
func TestImportsGoUpward(t *testing.T) {
	rows := layers(t)
	helper := func(dir string) bool { // for tests, programs of their own, and what make newcomer writes
		return strings.HasSuffix(dir, "test") || strings.HasPrefix(dir, "scripts/") || strings.HasPrefix(dir, "out/")
	}
	goFiles(t, func(name string, f *ast.File) {
		dir := path.Dir(name)
		if helper(dir) {
			return
		}
		row, ok := rows[dir]
		if !ok {
			t.Errorf("%s: package %s is in no row of the table of docs/architecture.md", name, dir)
			return
		}
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			rest, own := strings.CutPrefix(imported, module)
			if !own {
				continue
			}
			other := strings.TrimPrefix(rest, "/")
			if other == "" {
				other = "."
			}
			if helper(other) {
				t.Errorf("%s imports %s, which is for tests", name, imported)
			} else if isCommand(dir) && isCommand(other) && dir != other {
				t.Errorf("%s imports %s: what two commands need belongs into a package above them", name, imported)
			} else if at, ok := rows[other]; !ok || at > row {
				t.Errorf("%s imports %s, which is below it in the table of docs/architecture.md", name, imported)
			}
		}
	})
}

// TestPythonImports looks for circles in the imports of Python files, also those within functions.
func TestPythonImports(t *testing.T) {
	statement := regexp.MustCompile(`(?m)^[ \t]*(?:from (\.*)([\w.]*) )?import (\([^)]*\)|.+)$`)
	type imported struct{ module, name string } // name is a module in module, or something else that it has
	imports := map[string][]imported{}          // by module: its path without .py
	for _, root := range []string{"scripts/reference", "scripts/bench"} {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || path.Ext(name) != ".py" {
				return err
			}
			text, err := os.ReadFile(name)
			name = filepath.ToSlash(name)
			module := strings.TrimSuffix(strings.TrimSuffix(name, ".py"), "/__init__")
			imports[module] = nil
			for _, s := range statement.FindAllStringSubmatch(string(text), -1) {
				from := root
				if dots := len(s[1]); dots > 0 {
					from = path.Join(path.Dir(name), strings.Repeat("../", dots-1))
				}
				from = path.Join(from, strings.ReplaceAll(s[2], ".", "/"))
				for _, n := range strings.Split(strings.Trim(s[3], "()"), ",") {
					n, _, _ = strings.Cut(strings.TrimSpace(n), " ") // without "as"
					imports[module] = append(imports[module], imported{from, path.Join(from, strings.ReplaceAll(n, ".", "/"))})
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(imports) < 60 {
		t.Fatalf("%d Python files", len(imports))
	}
	visited := map[string]bool{}
	var visit func(module string, above []string)
	visit = func(module string, above []string) {
		if i := slices.Index(above, module); i >= 0 {
			t.Errorf("imports in a circle: %s", strings.Join(append(above[i:], module), " -> "))
		}
		if visited[module] {
			return
		}
		visited[module] = true
		above = append(slices.Clone(above), module)
		for _, i := range imports[module] {
			next := i.name
			if _, own := imports[next]; !own {
				next = i.module
			}
			if next != module { // as in a docstring's example
				visit(next, above)
			}
		}
	}
	for _, module := range slices.Sorted(maps.Keys(imports)) {
		visit(module, nil)
	}
}

// isCommand reports whether a package has commands of the program, and nothing that they share.
func isCommand(dir string) bool {
	group, ok := strings.CutPrefix(dir, "cmd/gomflux/internal/")
	return ok && !slices.Contains([]string{"rank", "ui", "cli", "record", "profile", "launch"}, group)
}

// TestNamesStayHome looks for names of families, pipeline classes and component
// classes in string literals outside of the files that describe them.
func TestNamesStayHome(t *testing.T) {
	families := slices.Concat(family.Names(), family.Classes(), []string{"Qwen-Image-Edit", "FLUX.2"})
	var classes []string
	for _, c := range component.All {
		classes = append(append(classes, c.Name), c.Aliases...)
	}
	classes = slices.DeleteFunc(classes, func(name string) bool { return name == "" })
	home := map[string][]string{} // where a class is described
	goFiles(t, func(name string, f *ast.File) {
		if path.Dir(name) == "models/component" {
			for _, text := range literals(f) {
				if slices.Contains(classes, text) {
					home[text] = append(home[text], name)
				}
			}
		}
	})
	for _, class := range classes {
		if files := slices.Compact(home[class]); len(files) != 1 {
			t.Errorf("%s is named in %q, expected one file of models/component", class, files)
		}
	}
	names := slices.Concat(families, classes)
	for i, name := range names {
		names[i] = regexp.QuoteMeta(name)
	}
	known := regexp.MustCompile(`(?:^|[^A-Za-z0-9])(` + strings.Join(names, "|") + `)(?:$|[^A-Za-z0-9])`)
	goFiles(t, func(name string, f *ast.File) {
		dir := path.Dir(name)
		describes := dir == "models/family" || dir == "models/component" ||
			dir == "transformer" // whose files are a class each
		if describes {
			return
		}
		for _, text := range literals(f) {
			for _, found := range known.FindAllStringSubmatch(text, -1) {
				t.Errorf("%s: %q names %s: that belongs into its file of models/family or models/component", name,
					shortened(text), found[1])
			}
		}
	})
}

// literals are the strings in a file, without the paths of imports and tags.
func literals(f *ast.File) (texts []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.KeyValueExpr: // examples of commands name published models
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Example" {
				return false
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

func shortened(text string) string {
	const most = 60
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
