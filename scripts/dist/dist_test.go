package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// write makes files below a folder.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{
		"gomflux v1.2.3 go1.26.8 linux/amd64\n":                                    "v1.2.3",
		"gomflux v0.0.0-20261121161249-3a0b3d49fb67+dirty go1.26.8 darwin/arm64\n": "v0.0.0-20261121161249-3a0b3d49fb67+dirty",
		"gomflux (devel) go1.26.8 linux/amd64\n":                                   "",
		"":                                                                         "",
	} {
		if got, err := parseVersion(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, expected %q", text, got, err, want)
		}
	}
}

func TestFindLibrary(t *testing.T) {
	const cache = `2 libs found in cache
	libopenblas64.so.0 (libc6,x86-64) => /usr/lib/libopenblas64.so.0
	libopenblas.so.0 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libopenblas.so.0
`
	if path, ok := findLibrary(cache, "libopenblas.so.0"); !ok || path != "/usr/lib/x86_64-linux-gnu/libopenblas.so.0" {
		t.Errorf("%s, %v", path, ok)
	}
	if path, ok := findLibrary(cache, "libopenblas.so"); ok {
		t.Errorf("%s for another name", path)
	}
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"b/c.txt": "text", "a": "#!/bin/sh\n"})
	if err := os.Chmod(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_700_000_000, 0)
	var archives [2][]byte
	for i := range archives {
		path := filepath.Join(t.TempDir(), "x.tar.gz")
		if err := pack(path, dir, "name-1", when); err != nil {
			t.Fatal(err)
		}
		archives[i] = []byte(read(t, path))
		if err := os.Chtimes(filepath.Join(dir, "a"), time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}

	z, err := gzip.NewReader(bytes.NewReader(archives[0]))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	want := []struct {
		name, text string
		mode       int64
	}{{"name-1/", "", 0o755}, {"name-1/a", "#!/bin/sh\n", 0o755}, {"name-1/b/", "", 0o755}, {"name-1/b/c.txt", "text", 0o644}}
	for _, w := range want {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != w.name || h.Mode != w.mode || string(text) != w.text || !h.ModTime.Equal(when) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%+v %q, expected %+v", h, text, w)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("more than expected, or %v", err)
	}
}

func TestNeeds(t *testing.T) {
	for _, test := range []struct {
		a, b  string
		older bool
	}{{"", "2.2", true}, {"2.9", "2.35", true}, {"2.35", "2.9", false}, {"2.2", "2.2.5", true}, {"3.4.30", "3.4.30", false}} {
		if got := older(test.a, test.b); got != test.older {
			t.Errorf("%s is older than %s: %v", test.a, test.b, got)
		}
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"text": "no program"})
	if got, err := needs(dir, "GLIBC"); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if runtime.GOOS != "linux" {
		return
	}
	// that of the program that is running, if it is linked to glibc
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := copyFile(self, filepath.Join(dir, "sub", "program")); err != nil {
		t.Fatal(err)
	}
	got, err := needs(dir, "GLIBC")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := elf.Open(self); err != nil {
		t.Error(err)
	} else if libraries, _ := f.ImportedLibraries(); (len(libraries) > 0) != strings.HasPrefix(got, "2.") {
		t.Errorf("%q of %v", got, libraries)
	}
}

func TestPackRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := pack(path, dir, "n", time.Now()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half an archive is left: %v", err)
	}
}

func TestWriteLicences(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, dir, map[string]string{
		"LICENSE":              "MIT License\n\nCopyright (c) us\n\nPermission is hereby granted, as we say\n",
		"one/LICENSE-APACHE":   "  Apache License\n  Version 2.0, January 2004\n",
		"one/license.go":       "package one\n",
		"one/c/COPYING":        "of the C code in it\n",
		"one/src/licensing.md": "about licences\n",
		"none/README":          "",
	})
	one, err := newPart("example.org/one", "v1", "", "one")
	if err != nil {
		t.Fatal(err)
	}
	none := part{name: "crate none", version: "2", licence: "MIT OR Apache-2.0", dir: "none"}
	held := part{name: "held", version: "3", licence: "MIT", holder: "1999 Somebody"}
	if err := writeLicences("out", []part{one, none, held}); err != nil {
		t.Fatal(err)
	}
	const index = `
crate none 2, MIT OR Apache-2.0
    crate-none-2/LICENSE-APACHE
example.org/one v1
    example.org_one-v1/LICENSE-APACHE
    example.org_one-v1/c/COPYING
held 3, MIT
    held-3/LICENSE
`
	if got := read(t, "out/INDEX.txt"); !strings.HasSuffix(got, index) {
		t.Errorf("index:\n%s", got)
	}
	if got, want := read(t, "out/held-3/LICENSE"),
		"MIT License\n\nCopyright (c) 1999 Somebody\n\nPermission is hereby granted, as we say\n"; got != want {
		t.Errorf("%q", got)
	}
	if got := read(t, "out/crate-none-2/LICENSE-APACHE"); !strings.Contains(got, "Apache License") {
		t.Errorf("%q", got)
	}

	bad := part{name: "bad", version: "1", licence: "MIT", dir: "none"}
	if err := writeLicences("out2", []part{one, bad}); err == nil || !strings.Contains(err.Error(), "bad 1 (MIT) has no licence file") {
		t.Errorf("error %v", err)
	}
}

func TestWheelParts(t *testing.T) {
	dir := t.TempDir()
	bom := func(name string) string {
		return `{"components": [{"name": "mlx", "version": "1", "purl": "pkg:pypi/mlx@1"}, {"name": "` + name +
			`", "version": "3.10", "purl": "pkg:deb/ubuntu/` + name + `@3.10"}]}`
	}
	write(t, dir, map[string]string{
		"known/sboms/auditwheel.cdx.json":   bom("liblapack3"),
		"other/sboms/auditwheel.cdx.json":   bom("libother1"),
		"missing/sboms/auditwheel.cdx.json": bom("libblas3"),
		"share/doc/liblapack3/copyright":    "BSD\n",
		"mac/METADATA":                      "",
	})
	tests := []struct{ info, names, err string }{
		{"known", "liblapack3", ""},
		{"mac", "", ""},
		{"other", "", "in MLX's wheel: libother1 3.10, whose licence is not known"},
		{"missing", "", "apt-get install libblas3"},
	}
	for _, test := range tests {
		parts, err := wheelParts(filepath.Join(dir, test.info), filepath.Join(dir, "share"))
		var names []string
		for _, p := range parts {
			names = append(names, p.name)
		}
		if got := strings.Join(names, " "); got != test.names || (err == nil) != (test.err == "") || err != nil &&
			!strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %s, %v", test.info, got, err)
		}
	}
}
