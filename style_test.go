package gomflux_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxColumns     = 140 // of a line of code, with tabs of four
	maxFunction    = 100 // lines
	maxCommandFile = 400 // lines
)

// offTerms are phrases that the table of words in CONTRIBUTING.md replaces.
var offTerms = regexp.MustCompile(`(?i)\b(says?|said|tells?) (what|whether|which|how|if)\b|\bpicture[- ]to[- ]picture\b|` +
	`\b(is|are|with|has|have|there is|needs|takes) none\b|\bnone of (it|them|these|those)\b`)

// TestStyle checks what CONTRIBUTING.md promises about the length of lines,
// functions and files, and a few of its words.
func TestStyle(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Skipf("git ls-files: %v", err)
	}
	for _, name := range strings.Fields(string(out)) {
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		checkStyle(t, filepath.ToSlash(name), string(text))
	}
}

func checkStyle(t *testing.T, name, text string) {
	lines := strings.Split(text, "\n")
	generated := strings.HasPrefix(text, "// Code generated")
	if strings.HasPrefix(name, "cmd/") && !strings.HasSuffix(name, "_test.go") && len(lines)-1 > maxCommandFile {
		t.Errorf("%s: %d lines, expected at most %d", name, len(lines)-1, maxCommandFile)
	}
	for i, line := range lines {
		width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
		if width > maxColumns && !generated {
			t.Errorf("%s:%d: %d columns, expected at most %d", name, i+1, width, maxColumns)
		}
		if found := offTerms.FindString(line); found != "" && name != "style_test.go" {
			t.Errorf("%s:%d: %q: see the table of words in CONTRIBUTING.md", name, i+1, found)
		}
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > maxFunction {
			t.Errorf("%s: function %s has %d lines, expected at most %d", name, f.Name.Name, n, maxFunction)
		}
	}
}
