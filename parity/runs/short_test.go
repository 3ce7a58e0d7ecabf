package runs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestShortFile(t *testing.T) {
	if at := thisFile(); at != "parity/runs/short_test.go" {
		t.Errorf("%q, expected parity/runs/short_test.go", at)
	}
	if got := ShortFile("/usr/lib/go/src/fmt/print.go"); got != "/usr/lib/go/src/fmt/print.go" {
		t.Errorf("%q: a file of another module was shortened", got)
	}
}

func thisFile() string { return ShortFile(caller(func(string) bool { return false }).File) }

// Code around a place is shown where the checkout is not: of the networks, which are in the program, and of modules
// in the module cache.
func TestContextElsewhere(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	t.Chdir(t.TempDir())
	user := filepath.Join("example.com", "app@v1.2.3", "main.go")
	if err := os.MkdirAll(filepath.Join(cache, filepath.Dir(user)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, user), []byte("package main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer func(old string) { source = old }(source)
	source = module // as in a trimmed build
	for name, first := range map[string]string{
		module + "mlx/nn/norm.go": "package nn", filepath.ToSlash(user): "package main",
		module + "transformer/zimage.go": "// Package transformer holds the diffusion transformers, one file per diffusers",
	} {
		if c := (Location{File: name, Line: 1}).Context(); c == nil || c.Lines["1"] != first {
			t.Errorf("%s: %+v, expected %q", name, c, first)
		}
	}
	if c := (Location{File: module + "transformer/nothing.go", Line: 1}).Context(); c != nil {
		t.Errorf("%+v of a file that is not there", c)
	}
}
