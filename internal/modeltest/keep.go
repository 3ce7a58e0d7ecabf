package modeltest

import (
	"flag"
	"os"
	"testing"
)

// Keep returns a folder for what a failed test leaves to be looked at: that of go test -artifacts, or else a new one in
// the temporary folder. It stays there, so a test that passes must not call it.
func Keep(t testing.TB) string {
	t.Helper()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		return t.ArtifactDir()
	}
	dir, err := os.MkdirTemp("", "gomflux-failed-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
