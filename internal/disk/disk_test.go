package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFree(t *testing.T) {
	dir := t.TempDir()
	here, err := Free(dir)
	if err != nil {
		t.Fatal(err)
	}
	below, err := Free(filepath.Join(dir, "not/there"))
	if err != nil || here <= 0 || below < here/2 || below > here*2 { // others write to it too
		t.Errorf("%d bytes free, and %d below (%v)", here, below, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if n, err := Free(filepath.Join(file, "x")); n != 0 || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%d bytes free below a file (%v)", n, err)
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                              dir,
		filepath.Join(dir, "a"):          dir,
		filepath.Join(dir, "a", "b.png"): dir,
		"not/there":                      ".",
		"/":                              "/",
	} {
		if got := Existing(path); got != want {
			t.Errorf("of %s there is %s, expected %s", path, got, want)
		}
	}
}

func TestIsFolder(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{dir: true, link: true, file: false, filepath.Join(dir, "gone"): false} {
		if got := IsFolder(path); got != want {
			t.Errorf("%s is a folder: %v, expected %v", path, got, want)
		}
	}
}
