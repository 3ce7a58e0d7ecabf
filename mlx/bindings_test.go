package mlx_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestBindingsAreCurrent checks that the generator makes the committed bindings of the
// headers.
func TestBindingsAreCurrent(t *testing.T) {
	const headers = "../.setup/include"
	if _, err := os.Stat(filepath.Join(headers, "mlx", "c")); err != nil {
		t.Skip("no headers of mlx-c; make setup puts them there")
	}
	out := filepath.Join(t.TempDir(), "bindings.go")
	cmd := exec.Command("go", "run", "./internal/gen", "-headers", headers, "-uses", ".", "-o", out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	got, err := os.ReadFile("internal/mlxc/bindings.go")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("internal/mlxc/bindings.go is out of date (run go generate ./mlx)")
	}
}
