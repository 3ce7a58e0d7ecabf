package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// holds fails the test unless a folder has these files and no others.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if content, ok := want[e.Name()]; err != nil || !ok || string(got) != content {
			t.Errorf("%s holds %q (%v), expected %q", e.Name(), got, err, content)
		}
	}
	if len(entries) != len(want) {
		t.Errorf("found %v, expected %v", entries, want)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, content := range []string{"first", "second"} {
		if err := Replace(path, text(content)); err != nil {
			t.Fatal(err)
		}
		holds(t, dir, map[string]string{"a": content})
	}
	failed := errors.New("failed")
	err := Replace(path, func(w io.Writer) error { return errors.Join(text("third")(w), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("error %v, expected %v", err, failed)
	}
	holds(t, dir, map[string]string{"a": "second"})
	if err := Replace(filepath.Join(dir, "not", "there"), text("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, expected %v", err, fs.ErrNotExist)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "folder"), text("")); err == nil {
		t.Error("a file took the place of a folder")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestMode holds that a file can be read by those whom the umask lets read it, as
// any other file.
func TestMode(t *testing.T) {
	dir := t.TempDir()
	ordinary, replaced := filepath.Join(dir, "ordinary"), filepath.Join(dir, "replaced")
	if err := os.WriteFile(ordinary, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Replace(replaced, text("")); err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(replaced); err != nil || got.Mode() != want.Mode() {
		t.Errorf("mode of %v (%v), expected %v", got, err, want.Mode())
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	taken, free := filepath.Join(dir, "taken"), filepath.Join(dir, "free")
	if err := os.WriteFile(taken, []byte("theirs"), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := New(taken)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Fill(text("ours")); err != nil {
		t.Fatal(err)
	}
	if err := f.Create(taken); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v, expected %v", err, fs.ErrExist)
	}
	if err := f.Create(free); err != nil {
		t.Error(err)
	}
	if err := f.Withdraw(free); err != nil {
		t.Error(err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "[^.]*")); !slices.Equal(names, []string{taken}) {
		t.Errorf("found %v, expected %s alone", names, taken)
	}
	if err := f.Create(free); err != nil {
		t.Error(err)
	}
	f.Discard()
	holds(t, dir, map[string]string{"taken": "theirs", "free": "ours"})
}

// TestWithdrawRenamed is Withdraw on a file system without links.
func TestWithdrawRenamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	f, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Discard()
	if err := f.Replace(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Withdraw(path); err != nil || exists(path) || !exists(f.Name()) {
		t.Errorf("error %v, %s there: %v, %s there: %v", err, path, exists(path), f.Name(), exists(f.Name()))
	}
}

// TestRemoveAll is what the second signal relies on.
func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	f, err := New(filepath.Join(dir, "x.png"))
	if err != nil {
		t.Fatal(err)
	}
	if !exists(f.Name()) {
		t.Errorf("%s is not there", f.Name())
	}
	RemoveAll()
	temporaries.Unlock()
	if exists(f.Name()) {
		t.Errorf("%s is there", f.Name())
	}
}
