// Command published lists the small files of the published models that tests have: which are proved by a
// public hash, which several sources agree on, and which are guessed or missing. With -write it writes
// small models with those files and random weights.
//
//	go run ./scripts/published
//	go run ./scripts/published -write OUT
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/internal/publishedtest"
)

func main() {
	out := flag.String("write", "", "write the models to this `folder` instead")
	match := flag.String("only", "*", "the models whose names, without the owner, match this `pattern`")
	flag.Parse()
	if err := run(*out, *match); err != nil {
		fmt.Fprintln(os.Stderr, "published:", err)
		os.Exit(1)
	}
}

func run(out, match string) error {
	models, err := publishedtest.Models(publishedtest.Root("."))
	if err != nil {
		return err
	}
	totals, files := map[string]int{}, 0
	for _, m := range models {
		name := filepath.Base(filepath.FromSlash(m.Name))
		if ok, err := filepath.Match(match, name); err != nil || !ok {
			continue
		}
		if out != "" {
			folder := filepath.Join(out, name)
			if err := m.Write(folder, true); err != nil {
				return err
			}
			if err := m.WriteWeights(folder); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			fmt.Println(m.Name)
			continue
		}
		list, err := m.List()
		if err != nil {
			return err
		}
		fmt.Println(m.Name)
		for _, f := range list {
			fmt.Printf("  %-7s  %-12.12s  %-60s  %s\n", f.Status, f.SHA256, f.Name, strings.Join(f.Sources, ", "))
			totals[f.Status]++
			files++
		}
	}
	if out == "" {
		fmt.Printf("%d models, %d files: %d have, %d agreed, %d guessed, %d none\n", len(models), files,
			totals["have"], totals["agreed"], totals["guessed"], totals["none"])
	}
	return nil
}
