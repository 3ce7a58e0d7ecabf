package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// A part is a third-party part of the archive.
type part struct {
	name, version string // version "" is unknown
	licence       string // the declared SPDX expression, or ""
	holder        string // of the copyright, for MIT without a licence file
	dir           string // where its licence files are
	files         []string
}

// collectLicences copies the licence files of all parts into a folder and lists the
// parts in INDEX.txt. A part without a licence file is an error, unless it is
// under Apache-2.0, whose text is always the same, or under MIT with named authors.
func collectLicences(out string) error {
	var parts []part
	for _, find := range []func() ([]part, error){goParts, crateParts, mlxParts, blasParts} {
		found, err := find()
		if err != nil {
			return err
		}
		parts = append(parts, found...)
	}
	return writeLicences(out, parts)
}

func writeLicences(out string, parts []part) error {
	slices.SortStableFunc(parts, func(a, b part) int {
		return strings.Compare(a.name+" "+a.version, b.name+" "+b.version)
	})
	var apache string
	for _, p := range parts {
		for _, f := range p.files {
			if text, err := os.ReadFile(f); err == nil && apacheText.Match(text) {
				apache = f
			}
		}
	}
	var index strings.Builder
	index.WriteString("What this archive holds besides gomflux, and the files with its licences.\n")
	if runtime.GOOS == "linux" {
		index.WriteString("The sources of the packages lib... are Debian's and Ubuntu's of these versions,\n" +
			"at snapshot.debian.org and launchpad.net/ubuntu.\n")
	}
	index.WriteString("\n")
	for _, p := range parts {
		files := p.files
		if len(files) == 0 && p.holder == "" && apacheOffered.MatchString(p.licence) && apache != "" {
			files = []string{apache}
		}
		title := strings.TrimSpace(p.name + " " + p.version)
		dir := strings.NewReplacer("/", "_", " ", "-").Replace(title)
		index.WriteString(title)
		if p.licence != "" {
			fmt.Fprintf(&index, ", %s", p.licence)
		}
		index.WriteString("\n")
		if p.holder != "" {
			if err := writeMIT(filepath.Join(out, dir, "LICENSE"), p.holder); err != nil {
				return err
			}
			fmt.Fprintf(&index, "    %s/LICENSE\n", dir)
		} else if len(files) == 0 {
			return fmt.Errorf("%s (%s) has no licence file in %s", title, p.licence, p.dir)
		}
		for _, f := range files {
			to := filepath.Join(dir, filepath.Base(f))
			if rel, err := filepath.Rel(p.dir, f); err == nil && filepath.IsLocal(rel) {
				to = filepath.Join(dir, rel)
			}
			if err := copyFile(f, filepath.Join(out, to)); err != nil {
				return err
			}
			fmt.Fprintf(&index, "    %s\n", filepath.ToSlash(to))
		}
	}
	return os.WriteFile(filepath.Join(out, "INDEX.txt"), []byte(index.String()), 0o666)
}

// writeMIT writes the MIT licence with another copyright holder.
func writeMIT(path, holder string) error {
	text, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	_, body, found := strings.Cut(string(text), "Permission is hereby granted")
	if !found {
		return errors.New("LICENSE is not the MIT licence")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "MIT License\n\nCopyright (c) %s\n\nPermission is hereby granted%s", holder, body), 0o666)
}

var (
	apacheText    = regexp.MustCompile(`Apache License\s+Version 2\.0, January 2004`)
	apacheOffered = regexp.MustCompile(`\bApache-2\.0\b`)
	licenceName   = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|copyright|notice)([-_.][\w.-]*)?$`)
	codeName      = regexp.MustCompile(`\.(go|rs|py|js|c|h)$`)
)

// licenceFiles lists the licence files in a folder and its direct subfolders, which
// may contain third-party sources.
func licenceFiles(dir string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"*", "*/*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			info, err := os.Lstat(path)
			if err != nil {
				return nil, err
			}
			if info.Mode().IsRegular() && licenceName.MatchString(info.Name()) && !codeName.MatchString(info.Name()) {
				files = append(files, path)
			}
		}
	}
	return files, nil
}

func newPart(name, version, licence, dir string) (part, error) {
	files, err := licenceFiles(dir)
	return part{name: name, version: version, licence: licence, dir: dir, files: files}, err
}

// goParts returns Go itself and the modules that the program uses.
func goParts() ([]part, error) {
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	toolchain, err := newPart("go", strings.TrimPrefix(runtime.Version(), "go"), "BSD-3-Clause", strings.TrimSpace(root))
	if err != nil {
		return nil, err
	}
	parts := []part{toolchain}
	text, err := output("go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`,
		"./cmd/gomflux")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		if line == "" {
			continue // the standard library, and gomflux
		}
		f := strings.SplitN(line, " ", 3)
		p, err := newPart(f[0], f[1], "", f[2])
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// crateParts returns the Rust crates of libtokenizers.a, including those that were
// only used at compile time.
func crateParts() ([]part, error) {
	dir, err := output("go", "list", "-m", "-f", "{{.Dir}}", "github.com/daulet/tokenizers")
	if err != nil {
		return nil, err
	}
	manifest := filepath.Join(strings.TrimSpace(dir), "Cargo.toml")
	tree, err := output("cargo", "tree", "--locked", "-e", "normal", "--prefix", "none", "-f", "{p}", "--manifest-path", manifest)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for line := range strings.Lines(tree) {
		if f := strings.Fields(line); len(f) >= 2 {
			used[f[0]+" "+strings.TrimPrefix(f[1], "v")] = true
		}
	}
	packages, err := cratePackages(manifest)
	if err != nil {
		return nil, err
	}
	rust, err := rustPart()
	if err != nil {
		return nil, err
	}
	parts := []part{rust}
	for _, c := range packages {
		if !used[c.Name+" "+c.Version] || c.Source == "" { // the root is the Go module
			continue
		}
		p, err := newPart("crate "+c.Name, c.Version, strings.Join(strings.Fields(strings.ReplaceAll(c.License, "/", " OR ")), " "),
			filepath.Dir(c.ManifestPath))
		if err != nil {
			return nil, err
		}
		if len(p.files) == 0 && p.licence == "MIT" {
			p.holder = strings.Join(c.Authors, ", ")
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// rustPart returns Rust's standard library.
func rustPart() (part, error) {
	version, err := output("rustc", "--version")
	if err != nil {
		return part{}, err
	}
	root, err := output("rustc", "--print", "sysroot")
	if err != nil {
		return part{}, err
	}
	f := strings.Fields(version)
	if len(f) < 2 {
		return part{}, fmt.Errorf("rustc --version: %q", version)
	}
	// the other file there is the compiler's
	p := part{name: "rust", version: f[1], licence: "MIT OR Apache-2.0", dir: filepath.Join(strings.TrimSpace(root), "share",
		"doc", "rust")}
	if p.files, err = filepath.Glob(filepath.Join(p.dir, "COPYRIGHT-library.html")); err != nil {
		return part{}, err
	}
	return p, nil
}

// A crate is a package as cargo metadata describes it.
type crate struct {
	Name, Version, License, Source string
	Authors                        []string
	ManifestPath                   string `json:"manifest_path"`
}

func cratePackages(manifest string) ([]crate, error) {
	text, err := output("cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", manifest)
	if err != nil {
		return nil, err
	}
	var metadata struct{ Packages []crate }
	if err := json.Unmarshal([]byte(text), &metadata); err != nil {
		return nil, fmt.Errorf("cargo metadata of %s: %w", manifest, err)
	}
	return metadata.Packages, nil
}

// mlxParts returns MLX, mlx-c and the libraries in MLX's wheel.
func mlxParts() ([]part, error) {
	packages, err := cratePackages("scripts/setup/mlxc/Cargo.toml")
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, c := range packages {
		if c.Name == "mlx-sys" {
			p, err := newPart("mlx-c", c.Version, "MIT", filepath.Join(filepath.Dir(c.ManifestPath), "src", "mlx-c"))
			if err != nil {
				return nil, err
			}
			parts = append(parts, p)
		}
	}
	infos, err := filepath.Glob(filepath.Join(setupLib, "mlx_*.dist-info"))
	if err != nil {
		return nil, err
	}
	if len(infos) != 1 {
		return nil, fmt.Errorf("expected one mlx_*.dist-info in %s, found %d (run make setup)", setupLib, len(infos))
	}
	name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(infos[0]), ".dist-info"), "-")
	p, err := newPart(strings.ReplaceAll(name, "_", "-"), version, "MIT", filepath.Join(infos[0], "licenses"))
	if err != nil {
		return nil, err
	}
	parts = append(parts, p)
	for _, c := range compiledIn {
		if runtime.GOOS == "darwin" || !c.mac {
			parts = append(parts, c.part)
		}
	}
	wheel, err := wheelParts(infos[0], "/usr/share")
	return append(parts, wheel...), err
}

// blasParts returns the packages of blasLibraries.
func blasParts() (parts []part, err error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	for _, l := range blasLibraries {
		version, err := output("dpkg-query", "-W", "-f", "${Version}", l.debian)
		if err != nil {
			return nil, err
		}
		p, err := debianPart(l.debian, version, "/usr/share")
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// compiledIn lists the libraries inside libmlx whose licences are missing from its
// wheel. {fmt} is not listed: its licence has an exception for object code.
var compiledIn = []struct {
	part
	mac bool // there only
}{
	{part: part{name: "nlohmann-json", version: "3.11.3", licence: "MIT", holder: "2013-2023 Niels Lohmann"}},
	{part: part{name: "gguf-tools", licence: "MIT", holder: "Salvatore Sanfilippo"}},
	{part: part{name: "metal-cpp", licence: "Apache-2.0"}, mac: true},
}

// wheelParts returns the libraries of a Linux distribution in a wheel, as listed by
// auditwheel.
func wheelParts(info, share string) ([]part, error) {
	text, err := os.ReadFile(filepath.Join(info, "sboms", "auditwheel.cdx.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // macOS has them all
	}
	if err != nil {
		return nil, err
	}
	var bom struct {
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		return nil, fmt.Errorf("%s: %w", info, err)
	}
	var parts []part
	for _, c := range bom.Components {
		if !strings.HasPrefix(c.Purl, "pkg:deb/") {
			continue
		}
		p, err := debianPart(c.Name, c.Version, share)
		if err != nil {
			return nil, fmt.Errorf("in MLX's wheel: %w", err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// debianPart returns a Debian package, or Ubuntu's of the same name, with the
// licence of the installed package below share.
func debianPart(name, version, share string) (part, error) {
	p := part{name: name, version: version, dir: filepath.Join(share, "doc", name)}
	p.files = []string{filepath.Join(p.dir, "copyright")}
	switch name {
	case "libgfortran5":
		p.licence = "GPL-3.0-or-later WITH GCC-exception-3.1"
		p.files = append(p.files, filepath.Join(share, "common-licenses", "GPL-3"))
	case "libquadmath0":
		p.licence = "LGPL-2.1-or-later"
		p.files = append(p.files, filepath.Join(share, "common-licenses", "LGPL-2.1"))
	case "libblas3", "liblapack3", "libopenblas0-pthread":
		p.licence = "BSD-3-Clause"
	default:
		return part{}, fmt.Errorf("%s %s, whose licence is not known here: add it to debianPart", name, version)
	}
	for _, f := range p.files {
		if _, err := os.Stat(f); err != nil {
			return part{}, fmt.Errorf("the licence of %s: %w (apt-get install %s)", name, err, name)
		}
	}
	return p, nil
}
