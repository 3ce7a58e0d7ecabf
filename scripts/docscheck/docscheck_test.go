package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const sample = "# A *title*, with `code`\n" + `
Text with ` + "`make test` and ``a ` tick``" + ` and [a link](docs/a.md#two "title"),
which [goes on over
lines](<b.md>). ![picture](x.png) ` + "`[no](link)`" + `

    make demo   # a comment
    make test

- item

      in the item

  not code

<!-- docs-check: skip it takes
     hours -->
` + "```sh" + `
one \
  two
` + "```" + `

## Two
## Two
~~~go title="x"
package main
~~~

[ref]: ../c.md
<a href="d.md">d</a> <!-- [not](this.md) -->
`

func TestParse(t *testing.T) {
	d, err := parse("x.md", sample)
	if err != nil {
		t.Fatal(err)
	}
	blocks := []block{
		{7, "", "make demo   # a comment\nmake test\n", nil},
		{12, "", "in the item\n", nil},
		{19, "sh", "one \\\n  two\n", []string{"skip it takes hours"}},
		{26, "go", "package main\n", nil},
	}
	if !reflect.DeepEqual(d.blocks, blocks) {
		t.Errorf("blocks %+v", d.blocks)
	}
	links := []link{{3, "docs/a.md#two"}, {4, "b.md"}, {5, "x.png"}, {29, "../c.md"}, {30, "d.md"}}
	if !reflect.DeepEqual(d.links, links) {
		t.Errorf("links %+v", d.links)
	}
	if want := []span{{1, "code"}, {3, "make test"}, {3, "a ` tick"}, {5, "[no](link)"}}; !reflect.DeepEqual(d.spans, want) {
		t.Errorf("spans %+v", d.spans)
	}
	if want := map[string]bool{"a-title-with-code": true, "two": true, "two-1": true}; !reflect.DeepEqual(d.anchors, want) {
		t.Errorf("anchors %v", d.anchors)
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a\n\n```sh\nmake\n":                        "x.md:3: this code block does not end",
		"<!-- docs-check: skip x -->\ntext\n":       "x.md:1: no code block after",
		"text\n\n<!-- docs-check: skip x -->\n":     "x.md:3: no code block after",
		"<!-- comment\n":                            "x.md:1: this comment does not end",
		"<!-- docs-check: skip x -->\n# Heading\n":  "x.md:1: no code block after",
		"<!-- docs-check: skip x -->\n\n    ok\n\n": "",
	} {
		_, err := parse("x.md", text)
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.HasPrefix(got, want) && want != "" {
			t.Errorf("%q: %s, expected %q", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("```\n```")
	f.Add("- a\n\n      b\n<!-- docs-check: in x -->\n\n\tc")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parse("x.md", text)
		if err != nil {
			return
		}
		lines := strings.Count(text, "\n") + 1
		for _, b := range d.blocks {
			if b.line < 1 || b.line > lines+1 {
				t.Errorf("a block in line %d of %d", b.line, lines)
			}
		}
		for _, l := range d.links {
			if l.line < 1 || l.line > lines || l.target == "" {
				t.Errorf("link %+v", l)
			}
		}
	})
}

func TestSlug(t *testing.T) {
	for text, want := range map[string]string{
		"What runs today":                 "what-runs-today",
		"One NVIDIA H200 (2026-11, 0.32)": "one-nvidia-h200-2026-11-032",
		"`a_b` and [c](d.md)":             "a_b-and-c",
		"Größe":                           "größe",
	} {
		if got := slug(text); got != want {
			t.Errorf("%s: %s, expected %s", text, got, want)
		}
	}
}

func TestCheckLinks(t *testing.T) {
	docs := map[string]*document{}
	for name, text := range map[string]string{
		"README.md": "# Top\n[a](docs/a.md) [b](docs/a.md#deep) [c](#top) [d](https://example.org/x#y) [e](docs)\n",
		"docs/a.md": "## Deep\n[a](../README.md#top) [b](b.md) [c](#shallow) [d](../README.md#topp) [e](/README.md) [f](../../x)\n",
	} {
		d, err := parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		docs[name] = d
	}
	got := checkLinks(docs, map[string]bool{"README.md": true, "docs": true, "docs/a.md": true})
	want := []string{
		"docs/a.md:2: link ../../x: there is no file ../x in the repository",
		"docs/a.md:2: link ../README.md#topp: README.md has no such heading",
		"docs/a.md:2: link #shallow: docs/a.md has no such heading",
		"docs/a.md:2: link /README.md: there is no file docs/README.md in the repository",
		"docs/a.md:2: link b.md: there is no file docs/b.md in the repository",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

func TestCommands(t *testing.T) {
	script := `make demo   # sets up; builds | all
bin/gomflux generate --prompt "a \"red\" circle" -o 'it''s.png' \
  --steps 8 && echo "a;b" | cat
A=1 B="2 3" go run . x=y #
`
	want := []command{
		{0, []string{"make", "demo"}},
		{1, []string{"bin/gomflux", "generate", "--prompt", `a "red" circle`, "-o", "its.png", "--steps", "8"}},
		{1, []string{"echo", "a;b"}},
		{1, []string{"cat"}},
		{3, []string{"go", "run", ".", "x=y"}},
	}
	if got := commands(script); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzCommands(f *testing.F) {
	f.Add("a 'b\nc' \\\n d # e")
	f.Fuzz(func(t *testing.T, script string) {
		for _, c := range commands(script) {
			if c.line < 0 || c.line > strings.Count(script, "\n") || len(c.words) == 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}

func TestReadMarks(t *testing.T) {
	o, err := readMarks([]string{"skip `hf download` 20 GB", "in program"})
	if err != nil || o.skip || o.prefixes["hf download"] != "20 GB" || o.in != "program" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := readMarks([]string{"needs main.go"}); err != nil || o.skip {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := readMarks([]string{"needs main.py"}); err != nil || !o.skip || o.reason != "there is no main.py" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, m := range []string{"needs", "needs ../x", "skip", "skip `hf`", "in", "in ../x", "ignore it"} {
		if o, err := readMarks([]string{m}); err == nil {
			t.Errorf("%q: %+v", m, o)
		}
	}
}

// fakeRunner has a gomflux that is a script, and a Makefile.
func fakeRunner(t *testing.T) *runner {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bin/gomflux": "#!/bin/sh\ntest \"$1\" != unknown || exit 2\ntest \"$2\" != nothing || exit 2\necho '  -p, " +
			"--prompt text   what'\nif test \"$2\" = list; then echo '      --stats'; exit; fi\n" +
			"echo 'Available Commands:'\necho '  diff   x'\necho '  list   y'\necho\necho '      --steps N'\nseq 3000\n",
		"Makefile": "demo:\n\ttouch made\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return &runner{root: dir, env: os.Environ(), helps: map[string]string{}}
}

func TestDocument(t *testing.T) {
	tests := []struct{ text, problem string }{
		{"    make demo\n    test -f made\n", ""},
		{"    make demon\n", "README.md:1: exit status 2"},
		{"    false | true\n", "README.md:1: exit status 1"},
		{"    test -d /path/to/gomflux/bin\n", ""},
		{"```ruby\nputs 1\n```\n", `language "ruby"`},
		{"```json\n{\"a\": 1}\n```\n", ""},
		{"```json\n{a: 1}\n```\n", "not valid JSON"},
		{"```text\nanything\n```\n", ""},
		{"```go\nfunc f() {}\n```\n", "not a whole Go program"},
		{"<!-- docs-check: skip excerpt -->\n\n```go\nfunc f() {}\n```\n", ""},
		{"<!-- docs-check: skip excerpt -->\n\n```go\nfunc f() {\n```\n", "expected '}'"},
		{"<!-- docs-check: skip slow -->\n\n    exit 1\n    make demo && bin/gomflux generate -p x --steps=3\n", ""},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux generate --stepz 3\n", "gomflux generate has no flag --stepz"},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux generate --step 3\n", "has no flag --step"},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux tensors list --stats -- generate --steps 3\n", ""},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux tensors list -- generate --stats\n", "generate has no flag --stats"},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux tensors list --stats\n", ""},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux tensors list --steps 3\n", "gomflux tensors list has no flag --steps"},
		{"<!-- docs-check: skip slow -->\n\n    bin/gomflux tensors show --stats\n", "gomflux tensors has no flag --stats"},
		{"<!-- docs-check: skip slow -->\n\n    gomflux unknown\n", "gomflux unknown --help: exit status 2"},
		{"<!-- docs-check: skip slow -->\n\n    make demon\n", "make demon: "},
		{"<!-- docs-check: skip slow -->\n\n    scripts/none.sh\n", "none.sh: no such file"},
		{"<!-- docs-check: skip `exit` fails -->\n\n    exit 1 \\\n      2\n    make demo\n", ""},
		{"<!-- docs-check: skip `exit` fails -->\n\n    make demo\n", `no line starts with "exit"`},
		{"<!-- docs-check: later -->\n\n    make demo\n", `does not know the mark "later"`},
		{"Use `make demon` or `gomflux`.\n", "README.md:1: make demon: "},
		{"Use `gomflux help TOPIC` and `gomflux help known`.\n", ""},
		{"Use `gomflux help nothing`.\n", "there is no gomflux help nothing"},
		{"Use `gomflux generate --size 3`.\n", "README.md:1: gomflux generate has no flag --size"},
		{"<!-- docs-check: in program -->\n\n    go run .\n", "no program comes before this"},
	}
	for _, test := range tests {
		d, err := parse("README.md", test.text)
		if err != nil {
			t.Fatal(err)
		}
		got := fakeRunner(t).document(d)
		if test.problem == "" && len(got) > 0 || test.problem != "" && (len(got) != 1 || !strings.Contains(got[0], test.problem)) {
			t.Errorf("%q: %q, expected %q", test.text, got, test.problem)
		}
	}
}

// TestSkippedIsNotRun looks for what a command would leave behind.
func TestSkippedIsNotRun(t *testing.T) {
	r := fakeRunner(t)
	d, err := parse("README.md", "<!-- docs-check: skip slow -->\n\n    make demo\n\n<!-- docs-check: skip `make` slow "+
		"-->\n\n    make demo\n    touch other\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.document(d); len(got) > 0 {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(r.root, "made")); err == nil {
		t.Error("make demo was run")
	}
	if _, err := os.Stat(filepath.Join(r.root, "other")); err != nil {
		t.Error(err)
	}
}
