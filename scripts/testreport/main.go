// Command testreport reads what go test -json prints and prints it as go test
// does: a line per package, and the output of tests that fail. Then it lists the
// packages and tests that took long, and counts the tests. It fails if a test did.
//
//	go test -json ./... | go run ./scripts/testreport
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// What is listed as slow, in seconds, and how many of each.
const (
	slowPackage = 10
	slowTest    = 3
	mostSlow    = 15
)

// An event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type timed struct {
	name    string
	seconds float64
}

// A report is what has been read.
type report struct {
	out                     io.Writer
	output                  map[string]map[string]*bytes.Buffer // by package and test, of what has not ended
	packages, tests         []timed
	passed, failed, skipped int
	broken                  bool // a package could not be built, or ended early
}

func main() {
	r := report{out: os.Stdout, output: map[string]map[string]*bytes.Buffer{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	r.end()
	if r.failed > 0 || r.broken || len(r.packages) == 0 {
		os.Exit(1)
	}
}

// read prints what belongs to a package as soon as that has ended.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprintf(r.out, "%s", line) // of go itself
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	top, _, sub := strings.Cut(e.Test, "/")
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.broken = true
	case "output":
		if r.output[e.Package] == nil {
			r.output[e.Package] = map[string]*bytes.Buffer{}
		}
		if r.output[e.Package][top] == nil {
			r.output[e.Package][top] = &bytes.Buffer{}
		}
		line := strings.TrimLeft(e.Output, " ")
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- PASS") && line != "PASS\n" {
			r.output[e.Package][top].WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
			return
		}
		r.tests = append(r.tests, timed{e.Package + " " + e.Test, e.Elapsed})
		switch {
		case sub: // counted with its test
		case e.Action == "pass":
			r.passed++
		case e.Action == "skip":
			r.skipped++
		default:
			r.failed++
			fmt.Fprint(r.out, r.output[e.Package][top])
		}
		if !sub {
			delete(r.output[e.Package], top)
		}
	}
}

// endPackage prints a package's line, and if it failed the output of tests that have not ended.
func (r *report) endPackage(e event) {
	if e.Action != "skip" {
		r.packages = append(r.packages, timed{e.Package, e.Elapsed})
	}
	last := r.output[e.Package][""]
	delete(r.output[e.Package], "")
	if e.Action == "fail" {
		r.broken = true
		for _, rest := range r.output[e.Package] {
			fmt.Fprint(r.out, rest)
		}
	}
	if last != nil {
		fmt.Fprint(r.out, last)
	}
	delete(r.output, e.Package)
}

// end prints what was slow, and the counts.
func (r *report) end() {
	r.slow("packages", r.packages, slowPackage)
	r.slow("tests", r.tests, slowTest)
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped, in %d packages\n", r.passed, r.failed, r.skipped, len(r.packages))
}

func (r *report) slow(what string, all []timed, least float64) {
	found := slices.DeleteFunc(slices.Clone(all), func(t timed) bool { return t.seconds < least })
	slices.SortStableFunc(found, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	if len(found) > 0 {
		fmt.Fprintf(r.out, "the slowest %s (%g s and more):\n", what, least)
	}
	for _, t := range found[:min(len(found), mostSlow)] {
		fmt.Fprintf(r.out, "%7.1f s  %s\n", t.seconds, strings.TrimPrefix(t.name, "github.com/gomflux/"))
	}
}
