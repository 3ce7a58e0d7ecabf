// Command docscheck runs the examples of the documentation: every command and
// every Go program in the code blocks of README.md, CONTRIBUTING.md and docs, as
// written and in order, in a copy of the checkout. It also checks the links of
// all Markdown files. Run it in the repository's root, after make setup. With
// arguments, it runs only the examples of these files.
//
// Indented blocks and sh blocks are commands. A go block is a program. A json
// block must be valid. A text block is not checked. Any other language is an
// error. A comment before a block changes how it is handled:
//
//	<!-- docs-check: skip REASON -->           do not run it
//	<!-- docs-check: skip `PREFIX` REASON -->  do not run lines with this prefix
//	<!-- docs-check: needs FILE -->            do not run it in a checkout without the file
//	<!-- docs-check: in FOLDER -->             run it in this folder; a go block
//	                                           is the main.go of the folder program
//
// Examples that are not run are checked as far as possible: targets of make, flags
// of gomflux and packages of go run must exist, Go programs must compile, and
// excerpts of Go, without a package, must parse. The same holds for commands within
// the text. /path/to/gomflux is replaced by the checkout.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("docs-check: ")
	keep := flag.Bool("keep", false, "keep the copy of the checkout, and print its path")
	flag.Parse()
	start := time.Now()
	problems, err := check(flag.Args(), *keep)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range problems {
		log.Print(p)
	}
	if len(problems) > 0 {
		log.Fatalf("%d problems", len(problems))
	}
	log.Printf("no problems (%.0f s)", time.Since(start).Seconds())
}

// check returns the problems in the named files, or in all.
func check(only []string, keep bool) (problems []string, err error) {
	names, err := checkoutFiles()
	if err != nil {
		return nil, err
	}
	docs, files := map[string]*document{}, map[string]bool{".": true}
	var run []*document
	for _, name := range names {
		for p := name; p != "."; p = path.Dir(p) {
			files[p] = true
		}
		if path.Ext(name) != ".md" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		d, err := parse(name, string(text))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		docs[name] = d
		if len(only) == 0 && isDocumentation(name) || slices.Contains(only, name) {
			run = append(run, d)
		}
	}
	for _, name := range only {
		if !files[name] || path.Ext(name) != ".md" {
			return nil, fmt.Errorf("%s is not a Markdown file of the checkout (its path must be relative to the root)", name)
		}
	}
	problems = append(problems, checkLinks(docs, files)...)
	slices.SortFunc(run, func(a, b *document) int { return cmp.Compare(a.name, b.name) })

	dir, err := os.MkdirTemp("", "gomflux-docs-")
	if err != nil {
		return nil, err
	}
	if keep {
		log.Print("the copy is ", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	r, err := newRunner(dir, names)
	if err != nil {
		return nil, err
	}
	for _, d := range run {
		problems = append(problems, r.document(d)...)
	}
	return problems, nil
}

// isDocumentation reports whether the code of a Markdown file is to be run.
func isDocumentation(name string) bool {
	return name == "README.md" || name == "CONTRIBUTING.md" || strings.HasPrefix(name, "docs/")
}

// checkoutFiles lists the files of the checkout that git does not ignore.
func checkoutFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if _, err := os.Lstat(filepath.FromSlash(name)); err == nil { // not the empty one after the last
			names = append(names, name)
		}
	}
	return names, nil
}
