package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
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

// bash runs commands with the functions of functions.sh, in the folder of the test. It returns what they print, and
// false if they fail.
func bash(t *testing.T, functions, commands string) (string, bool) {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	const folders = "; work=$PWD/work licences=$PWD/licences share=$PWD/share; rm -rf $work $licences; mkdir $work $licences; "
	out, err := exec.Command(shell, "-euo", "pipefail", "-c", ". '"+functions+"'"+folders+commands).CombinedOutput()
	return string(out), err == nil
}

// inTemp changes to an empty folder, and returns the path of functions.sh.
func inTemp(t *testing.T) string {
	t.Helper()
	functions, err := filepath.Abs("functions.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	return functions
}

func TestPack(t *testing.T) {
	functions := inTemp(t)
	write(t, ".", map[string]string{"x/b/c.txt": "text", "x/a": "#!/bin/sh\n"})
	if err := os.Chmod("x/a", 0o700); err != nil {
		t.Fatal(err)
	}
	var archives [2]string
	for i := range archives {
		if out, ok := bash(t, functions, "pack x ./name-1.tar.gz 202311142213.20"); !ok {
			t.Fatal(out)
		}
		archives[i] = read(t, "name-1.tar.gz")
		if err := os.Chtimes("x/a", time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if archives[0] != archives[1] {
		t.Error("two archives of the same files differ")
	}
	if sum := read(t, "name-1.tar.gz.sha256"); len(sum) != 64+len("  name-1.tar.gz\n") || !strings.HasSuffix(sum, "  name-1.tar.gz\n") {
		t.Errorf("checksum %q", sum)
	}

	z, err := gzip.NewReader(strings.NewReader(archives[0]))
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
		if h.Name != w.name || h.Mode != w.mode || string(text) != w.text || !h.ModTime.Equal(time.Unix(1_700_000_000, 0)) || h.Uid != 0 ||
			h.Uname != "" {
			t.Errorf("%+v %q, expected %+v", h, text, w)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("more than expected, or %v", err)
	}
}

func TestPackRefusesLinks(t *testing.T) {
	functions := inTemp(t)
	write(t, "x", map[string]string{"a": ""})
	if err := os.Symlink("/etc/passwd", "x/b"); err != nil {
		t.Fatal(err)
	}
	out, ok := bash(t, functions, "pack x ./n.tar.gz 202311142213.20")
	if _, err := os.Stat("n.tar.gz"); ok || err == nil || out != "dist: not a regular file: x/b\n" {
		t.Errorf("%t, %v: %s", ok, err, out)
	}
}

// The versions that the program that is running needs, if it is linked to glibc.
func TestNewest(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("for Linux")
	}
	functions := inTemp(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	write(t, ".", map[string]string{"x/gomflux": string(self), "x/completions/gomflux": "no program"})
	out, ok := bash(t, functions, "newest GLIBC x; newest GLIBCXX x")
	if linked := bytes.Contains(self, []byte("GLIBC_2.")); !ok || linked != strings.HasPrefix(out, "2.") || strings.Contains(out, "_") {
		t.Errorf("%t, %q, linked to glibc: %t", ok, out, linked)
	}
}

func TestLicences(t *testing.T) {
	functions := inTemp(t)
	write(t, ".", map[string]string{
		"LICENSE":              "MIT License\n\nCopyright (c) us\n\nPermission is hereby granted, as we say\n",
		"one/LICENSE-APACHE":   "  Apache License\n  Version 2.0, January 2004\n",
		"one/license.go":       "package one\n",
		"one/c/COPYING":        "of the C code in it\n",
		"one/src/licensing.md": "about licences\n",
		"none/README":          "",
	})
	const good = "licence_files one | part 'example.org/one v1' '' one; " +
		"licence_files none | part 'crate none 2' 'MIT OR Apache-2.0' none; mit_part 'held 3' '1999 Some & body'; "
	if out, ok := bash(t, functions, good+"write_index"); !ok {
		t.Fatal(out)
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
	if got := read(t, "licences/INDEX.txt"); !strings.HasSuffix(got, index) {
		t.Errorf("index:\n%s", got)
	}
	for file, want := range map[string]string{
		"held-3/LICENSE":              "MIT License\n\nCopyright (c) 1999 Some & body\n\nPermission is hereby granted, as we say\n",
		"crate-none-2/LICENSE-APACHE": "  Apache License\n  Version 2.0, January 2004\n",
	} {
		if got := read(t, filepath.Join("licences", file)); got != want {
			t.Errorf("%s: %q", file, got)
		}
	}

	out, ok := bash(t, functions, good+"part 'bad 1' MIT . </dev/null; write_index; echo went on")
	if ok || out != "dist: bad 1 (MIT) has no licence file\n" {
		t.Errorf("%t: %s", ok, out)
	}
}

func TestWheelParts(t *testing.T) {
	bom := func(name string) string {
		return `{"components": [{"name": "mlx", "version": "1", "purl": "pkg:pypi/mlx@1"}, {"name": "` + name +
			`", "version": "3.10", "purl": "pkg:deb/ubuntu/` + name + `@3.10"}]}`
	}
	tests := []struct{ bom, files, err string }{
		{bom("liblapack3"), "licences/liblapack3-3.10/copyright", ""},
		{bom("libgfortran5"), "licences/libgfortran5-3.10/GPL-3 licences/libgfortran5-3.10/copyright", ""},
		{"", "", ""}, // of macOS
		{bom("libother1"), "", "libother1 3.10, whose licence is not known"},
		{bom("libblas3"), "", "apt-get install libblas3"},
		{"{", "", "JSON"},
	}
	for _, test := range tests {
		t.Run(test.bom, func(t *testing.T) {
			functions := inTemp(t)
			write(t, "share", map[string]string{
				"doc/liblapack3/copyright": "BSD\n", "doc/libgfortran5/copyright": "GPL\n", "common-licenses/GPL-3": "GPL\n",
			})
			if test.bom != "" {
				write(t, ".", map[string]string{"bom": test.bom})
			}
			out, ok := bash(t, functions, "wheel_parts bom")
			found, err := filepath.Glob("licences/*/*")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(found, " "); got != test.files || ok != (test.err == "") || !strings.Contains(out, test.err) {
				t.Errorf("%s, %t: %s", got, ok, out)
			}
		})
	}
}
