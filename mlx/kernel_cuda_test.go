package mlx

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

func TestStoredCode(t *testing.T) {
	if _, err := Open(); err != nil {
		t.Fatal(err)
	}
	// as g++ prints std::hash<std::string>{}("gomflux"); MLX on a Mac has another C++ library, and no CUDA
	switch name := mlxc.CUDAModule("sum", []byte("gomflux")); {
	case name == "":
		t.Skip("there is no libstdc++")
	case name != "sum_c247109abe48c631":
		t.Errorf("the name of a module is %s", name)
	}
	folder := filepath.Join(t.TempDir(), "new", "cuda")
	compiled := 0
	stored := func(folder, key string) string {
		t.Helper()
		text, err := storedCode(folder, "sum", key, func() ([]byte, error) { compiled++; return []byte("code of " + key), nil })
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	a, b := stored(folder, "a"), stored(folder, "b")
	if a == b || stored(folder, "a") != a || compiled != 2 {
		t.Errorf("texts %s and %s, compiled %d times", a, b, compiled)
	}
	file := filepath.Join(folder, mlxc.CUDAModule("sum", []byte(a)))
	for extension, want := range map[string]string{".ptx": "code of a", ".txt": "sum\tsum\n"} {
		if found, err := os.ReadFile(file + extension); err != nil || string(found) != want {
			t.Errorf("%s is %q, %v", extension, found, err)
		}
	}
	for _, folder := range []string{"", file + ".ptx"} { // none, and one that cannot be made
		if text := stored(folder, "a"); text != "code of a" {
			t.Errorf("with the folder %q the text is %q", folder, text)
		}
	}
	failed := errors.New("no compiler")
	if _, err := storedCode(folder, "sum", "c", func() ([]byte, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Errorf("%v, expected %v", err, failed)
	}
}
