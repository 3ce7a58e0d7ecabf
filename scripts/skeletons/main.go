// Command skeletons writes small models without weights, from the small files of published models.
// Python's reference gives them random weights and compares diffusers with gomflux.
//
//	go run ./scripts/skeletons OUT
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/publishedtest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/skeletons OUT (in the repository's folder)")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "skeletons:", err)
		os.Exit(1)
	}
}

func write(out string) error {
	os.Setenv("HF_HOME", filepath.Join(out, "no-cache")) // values come from gomflux, not from downloaded models
	models, err := publishedtest.Models(publishedtest.Root("."))
	if err != nil {
		return err
	}
	for _, m := range models {
		if err := m.Write(filepath.Join(out, filepath.Base(filepath.FromSlash(m.Name))), true); err != nil {
			return err
		}
		fmt.Println(m.Name)
	}
	return nil
}
