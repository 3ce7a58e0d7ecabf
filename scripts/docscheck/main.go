// Command docscheck runs what the documentation says: every command and every
// Go program in the code blocks of README.md, CONTRIBUTING.md and docs, as
// written and in order, in a copy of the checkout. It also checks the links of
// all Markdown files. Run it in the repository's root, after make setup.
//
// Blocks that are indented, or marked sh, are commands; go is a program. json
// must be valid; text is shown to people only. Any other is an error. A comment
// before a block changes what happens to it:
//
//	<!-- docs-check: skip REASON -->           it is not run
//	<!-- docs-check: skip `PREFIX` REASON -->  nor are its lines that start so
//	<!-- docs-check: in FOLDER -->             it is run there; a go block is the
//	                                           main.go of the folder program
//
// What is not run is checked as far as it can be: the targets of make, the
// flags of gomflux, the packages of go run, and Go programs are compiled. So
// are commands in the text itself. /path/to/gomflux stands for the checkout.
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
	keep := flag.Bool("keep", false, "keep the copy of the checkout, and say where it is")
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
	log.Printf("all is as written (%.0f s)", time.Since(start).Seconds())
}

// check returns what is wrong in the files given, or in all.
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
		if docs[name] == nil && !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, name+":") }) {
			return nil, fmt.Errorf("%s is no Markdown file of the checkout (give its path from there)", name)
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

// isDocumentation says whether the code of a Markdown file is for its readers
// to run.
func isDocumentation(name string) bool {
	return name == "README.md" || name == "CONTRIBUTING.md" || strings.HasPrefix(name, "docs/")
}

// checkoutFiles lists what is in the checkout and not ignored, deleted files
// excepted.
func checkoutFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" {
			continue
		}
		if _, err := os.Lstat(filepath.FromSlash(name)); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}
