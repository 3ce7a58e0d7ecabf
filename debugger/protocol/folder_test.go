package protocol

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newFolder returns a folder of sockets in a short temporary folder.
func newFolder(t *testing.T) *Folder {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	f, err := OpenFolder()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shortDir is T.TempDir with a path that is short enough for sockets on every system.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gomflux-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// files returns the names of the files in the folder.
func (f *Folder) files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (f *Folder) holds(t *testing.T, want ...string) {
	t.Helper()
	if got := f.files(t); !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, expected %q", got, want)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenFolder(t *testing.T) {
	f := newFolder(t)
	if want := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "gomflux-debug"); f.Path != want {
		t.Errorf("folder %s, expected %s", f.Path, want)
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if _, err := OpenFolder(); err != nil {
		t.Errorf("opened again: %v", err)
	}
	tmp := shortDir(t)
	t.Setenv("TMPDIR", tmp)
	for _, runtime := range []string{"", filepath.Join(tmp, "gone")} {
		t.Setenv("XDG_RUNTIME_DIR", runtime)
		f, err := OpenFolder()
		if err != nil || filepath.Dir(f.Path) != tmp || !strings.HasPrefix(filepath.Base(f.Path), "gomflux-debug-") {
			t.Errorf("XDG_RUNTIME_DIR=%s: folder %v (%v)", runtime, f, err)
		}
	}
}

func TestOpenFolderRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"mode", "mode 0755, expected 0700", func(path string) error { return os.Mkdir(path, 0o755) }},
		{"symlink", "found a symbolic link", func(path string) error {
			return errors.Join(os.Mkdir(path+"2", 0o700), os.Symlink(path+"2", path))
		}},
		{"file", "found a file", func(path string) error { return os.WriteFile(path, nil, 0o700) }},
		{"owner", "it belongs to user 12345, expected 0", func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 12345, -1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "owner" && os.Geteuid() != 0 {
				t.Skip("only root can give a folder to another user")
			}
			dir := shortDir(t)
			t.Setenv("XDG_RUNTIME_DIR", dir)
			path := filepath.Join(dir, "gomflux-debug")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			_, err := OpenFolder()
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, expected %q", err, c.want)
			}
		})
	}
}

func TestPathTooLong(t *testing.T) {
	dir := filepath.Join(shortDir(t), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err := OpenFolder()
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("error %v", err)
	}
	// a path that is short enough for session 1, but not for a long name
	base := shortDir(t)
	room := maxSocketPath - len(base) - len("/gomflux-debug/1.sock") - 1
	dir = filepath.Join(base, strings.Repeat("d", room))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	f, err := OpenFolder()
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Reserve("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.Listen() // of the longest path that the system allows
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := r.Close(Status{State: Finished}); err != nil {
		t.Error(err)
	}
	if _, err := f.Reserve("12"); err == nil || !strings.Contains(err.Error(), "its path has") {
		t.Errorf("error %v", err)
	}
	f.holds(t, "1.json")
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"1", "a", "A-b_c.9", strings.Repeat("x", 32), "-", "a.lock"} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	f := newFolder(t)
	for _, name := range []string{"", ".", "..", ".a", "a/b", "/", "../a", "a b", "ä", "a\x00", "a\n", strings.Repeat("x", 33)} {
		if err := CheckName(name); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v", name, err)
		}
		if name == "" {
			continue // the default of both
		}
		if _, err := f.Reserve(name); err == nil {
			t.Errorf("%q was reserved", name)
		}
		if _, err := f.Choose(name, "gomflux", ""); err == nil {
			t.Errorf("%q was chosen", name)
		}
		if _, err := Dial(t.Context(), f, name); err == nil {
			t.Errorf("%q was dialled", name)
		}
	}
	f.holds(t)
}

func TestReserve(t *testing.T) {
	f := newFolder(t)
	for _, suffix := range []string{lockSuffix, socketSuffix, tempSuffix} { // of a session that was killed
		put(t, f.file("1", suffix), "stale")
	}
	first, err := f.Reserve("")
	if err != nil || first.Name != "1" {
		t.Fatalf("%+v, %v", first, err)
	}
	f.holds(t, "1.lock")
	second, err := f.Reserve("")
	if err != nil || second.Name != "2" {
		t.Fatalf("%+v, %v", second, err)
	}
	if _, err := f.Reserve("1"); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "session 1:") {
		t.Errorf("error %v, expected %v", err, ErrTaken)
	}
	l, err := first.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(f.file("1", socketSuffix)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if err := first.Close(Status{State: Finished}); err != nil {
		t.Error(err)
	}
	if err := first.WriteStatus(Status{State: Running}); err != nil { // too late: it is not ours
		t.Error(err)
	}
	f.holds(t, "1.json", "2.lock")
	again, err := f.Reserve("1")
	if err != nil {
		t.Fatal(err)
	}
	f.holds(t, "1.lock", "2.lock")
	newListener, err := again.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer newListener.Close()
	l.Close() // must not remove the socket of the new session
	f.holds(t, "1.lock", "1.sock", "2.lock")
}
