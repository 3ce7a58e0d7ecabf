// Command dist packs gomflux with the libraries that it opens into
// dist/gomflux-VERSION-OS-ARCH.tar.gz, for machines without a development
// environment. Run it in the root of a checkout after make setup; for an archive for macOS
// after scripts/setup.sh --with-macos, as make dist does.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
	"time"

	"github.com/gomflux/gomflux/internal/filehash"
)

const setupLib = ".setup/lib"

func main() {
	log.SetFlags(0)
	log.SetPrefix("dist: ")
	out := flag.String("o", "dist", "the `folder` to write to")
	libraries := flag.Bool("mac-libraries", false, "pack only MLX's libraries of an archive for macOS, on any system")
	flag.Parse()
	make := dist
	if *libraries {
		make = macLibraries
	}
	result, err := make(*out)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result)
}

func dist(out string) (string, error) {
	stage, err := os.MkdirTemp("", "gomflux-dist-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(stage)

	// build instead of using bin/gomflux, so that it always contains the version
	binary := filepath.Join(stage, "gomflux")
	if _, err := output("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", binary, "./cmd/gomflux"); err != nil {
		return "", err
	}
	text, err := output(binary, "version")
	if err != nil {
		return "", err
	}
	version, err := parseVersion(text)
	if err != nil {
		return "", err
	}
	if err := copyLibraries(stage); err != nil {
		return "", err
	}
	if err := copyBLAS(filepath.Join(stage, "lib")); err != nil {
		return "", err
	}
	if err := collectLicences(filepath.Join(stage, "licences")); err != nil {
		return "", err
	}
	if err := copyFile("LICENSE", filepath.Join(stage, "LICENSE")); err != nil {
		return "", err
	}
	if err := completions(binary, filepath.Join(stage, "completions")); err != nil {
		return "", err
	}
	if err := writeReadme(stage, version); err != nil {
		return "", err
	}
	return archive(out, stage, fmt.Sprintf("gomflux-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
}

// archive packs a folder under a name, writes the checksum, and returns the archive's path.
func archive(out, stage, name string) (path string, err error) {
	when, err := commitTime()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return "", err
	}
	path = filepath.Join(out, name+".tar.gz")
	if err := pack(path, stage, name, when); err != nil {
		return "", err
	}
	return path, writeSum(path)
}

// parseVersion returns the version from the output of gomflux version.
func parseVersion(text string) (string, error) {
	fields := strings.Fields(text)
	if len(fields) < 2 || fields[0] != "gomflux" || !strings.HasPrefix(fields[1], "v") {
		return "", fmt.Errorf("the program says it is %q: expected a version such as v0.1.0 (it comes from git: is this "+
			"a clone with git installed?)", strings.TrimSpace(text))
	}
	return fields[1], nil
}

// copyLibraries creates lib/ with the structure of .setup/lib, on macOS with two of them. The libraries find
// each other by relative paths, so they need no changes, and on macOS their
// signatures stay valid.
func copyLibraries(stage string) error {
	if runtime.GOOS == "darwin" {
		return copyMacLibraries(filepath.Join(stage, "lib"), setupMacOS, filepath.Join(setupLib, "libmlxc.dylib"))
	}
	return copyFiles(filepath.Join(stage, "lib"), setupLib, "libmlxc.so", "mlx/lib/*", "mlx_*.libs/*")
}

// copyFiles copies the files of a folder that match patterns, but for static libraries.
func copyFiles(to, from string, patterns ...string) error {
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			return err
		}
		if len(paths) == 0 {
			return fmt.Errorf("no %s in %s (run make setup)", pattern, from)
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if info.IsDir() || strings.HasSuffix(path, ".a") {
				continue // for those who compile against MLX
			}
			rel, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			if err := copyFile(path, filepath.Join(to, rel)); err != nil {
				return err
			}
		}
	}
	return nil
}

// blasLibraries are what makes products on Linux's CPUs fast, as Debian has
// them: gomflux opens an OpenBLAS that lies beside libmlxc.
var blasLibraries = []struct{ file, debian string }{
	{"libopenblas.so.0", "libopenblas0-pthread"},
	{"libgfortran.so.5", "libgfortran5"},
	{"libquadmath.so.0", "libquadmath0"},
}

func copyBLAS(dir string) error {
	if runtime.GOOS != "linux" {
		return nil
	}
	cache, err := output("/sbin/ldconfig", "-p")
	if err != nil {
		return err
	}
	for _, l := range blasLibraries {
		path, ok := findLibrary(cache, l.file)
		if !ok {
			return fmt.Errorf("no %s on this machine (apt-get install %s)", l.file, l.debian)
		}
		if err := copyFile(path, filepath.Join(dir, l.file)); err != nil {
			return err
		}
	}
	return nil
}

// findLibrary finds a library in the output of ldconfig -p.
func findLibrary(cache, file string) (string, bool) {
	for line := range strings.Lines(cache) {
		name, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if ok && strings.HasPrefix(name, file+" ") {
			return path, true
		}
	}
	return "", false
}

// completions writes the shells' completion scripts under the names that they
// look for.
func completions(binary, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for shell, name := range map[string]string{"bash": "gomflux", "zsh": "_gomflux", "fish": "gomflux.fish"} {
		text, err := output(binary, "completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

//go:embed readme.txt
var readme string

// writeReadme writes README.txt with the requirements of the files.
func writeReadme(stage, version string) error {
	t, err := template.New("readme.txt").Parse(readme)
	if err != nil {
		return err
	}
	v := map[string]any{"Version": version, "Mac": runtime.GOOS == "darwin"}
	if runtime.GOOS == "darwin" {
		if v["MacOS"], err = macRequires(stage); err != nil {
			return err
		}
	}
	for _, kind := range []string{"GLIBC", "GLIBCXX"} {
		if v[kind], err = needs(stage, kind); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	if err := t.Execute(&text, v); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stage, "README.txt"), text.Bytes(), 0o666)
}

// commitTime returns the time of HEAD, which all files in the archive get.
func commitTime() (time.Time, error) {
	text, err := output("git", "log", "-1", "--format=%cI")
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339, strings.TrimSpace(text))
}

// writeSum writes the checksum as sha256sum -c reads it.
func writeSum(path string) error {
	sum, err := filehash.SHA256(context.Background(), path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path+".sha256", fmt.Appendf(nil, "%s  %s\n", sum, filepath.Base(path)), 0o666)
}

// output runs a command and returns what it prints.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}

// copyFile copies a file with its mode, and makes the folder it goes to.
func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}
