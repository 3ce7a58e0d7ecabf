package main

import (
	"bytes"
	"debug/macho"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/macos"
)

// setupMacOS has MLX's wheels for macOS, as set-up unpacks them with --with-macos.
const setupMacOS = ".setup/macos"

// A macBuild is MLX's build for a version of macOS and newer ones.
type macBuild struct {
	minimum macos.Version
	dir     string // of libmlx.dylib, mlx.metallib and the libraries that libmlx needs
}

// macBuilds finds the builds below dir, that for the oldest macOS first.
func macBuilds(dir string) ([]macBuild, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "mlx", "lib", "libmlx.dylib"))
	if err != nil {
		return nil, err
	}
	var builds []macBuild
	for _, path := range paths {
		minimum, err := macos.Minimum(path)
		if err != nil {
			return nil, err
		}
		builds = append(builds, macBuild{minimum, filepath.Dir(path)})
	}
	slices.SortFunc(builds, func(a, b macBuild) int { return a.minimum.Compare(b.minimum) })
	if len(builds) < 2 {
		return nil, fmt.Errorf("%d builds of MLX for macOS in %s, expected 2 (run scripts/setup.sh --with-macos)", len(builds), dir)
	}
	return builds, nil
}

// copyMacLibraries creates lib with the oldest build, and a folder such as macos26.2 in it
// for each newer one, from which the program chooses. Each has its own copy of libmlxc, which
// finds libmlx relative to itself. Without mlxc, a path, the copies are left out.
func copyMacLibraries(lib, from, mlxc string) error {
	builds, err := macBuilds(from)
	if err != nil {
		return err
	}
	for i, b := range builds {
		dir := lib
		if i > 0 {
			dir = filepath.Join(lib, "macos"+b.minimum.String())
		}
		if err := copyFiles(filepath.Join(dir, "mlx", "lib"), b.dir, "*"); err != nil {
			return err
		}
		if mlxc != "" {
			if err := copyFile(mlxc, filepath.Join(dir, "libmlxc.dylib")); err != nil {
				return err
			}
		}
		if err := checkBuild(dir, b.minimum, mlxc != ""); err != nil {
			return err
		}
		if err := sameFunctions(filepath.Join(builds[0].dir, "libmlx.dylib"), filepath.Join(b.dir, "libmlx.dylib")); err != nil {
			return err
		}
	}
	return nil
}

// acceleratorKernel is in the names of kernels that use the M5's neural accelerators.
const acceleratorKernel = "steel_gemm_fused_nax"

// checkBuild checks that the libraries of a folder run on its version of macOS, for arm64,
// and find each other: libmlxc leads to mlx/lib, where all that they need besides the
// system's lies. The build for macOS 26.2 must have the kernels for which it is packed.
func checkBuild(dir string, version macos.Version, withMLXC bool) error {
	inner := filepath.Join(dir, "mlx", "lib")
	libraries, err := filepath.Glob(filepath.Join(inner, "*.dylib"))
	if err != nil {
		return err
	}
	for _, path := range libraries {
		minimum, err := macos.Minimum(path)
		if err != nil {
			return err
		}
		if minimum.Compare(version) > 0 {
			return fmt.Errorf("%s needs macOS %v, its folder is for %v", path, minimum, version)
		}
		if _, err := checkNeeds(path, inner); err != nil {
			return err
		}
	}
	metallib, err := os.ReadFile(filepath.Join(inner, "mlx.metallib"))
	if err != nil {
		return err
	}
	if has := bytes.Contains(metallib, []byte(acceleratorKernel)); has != (version.Major >= 26) {
		return fmt.Errorf("%s/mlx.metallib, for macOS %v: kernels for neural accelerators: %v", inner, version, has)
	}
	if !withMLXC {
		return nil
	}
	mlxc := filepath.Join(dir, "libmlxc.dylib")
	searched, err := checkNeeds(mlxc, inner)
	if err != nil {
		return err
	}
	if !slices.Contains(searched, "@loader_path/mlx/lib") {
		return fmt.Errorf("%s searches %q, expected @loader_path/mlx/lib", mlxc, searched)
	}
	return nil
}

// checkNeeds checks that a library is for arm64 and that dir has the libraries that it needs
// by @rpath. It returns the folders that the library searches for them.
func checkNeeds(path, dir string) (searched []string, err error) {
	f, err := macho.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if f.Cpu != macho.CpuArm64 || f.Type != macho.TypeDylib {
		return nil, fmt.Errorf("%s is a %v for %v, expected a library for arm64", path, f.Type, f.Cpu)
	}
	for _, l := range f.Loads {
		if r, ok := l.(*macho.Rpath); ok {
			searched = append(searched, r.Path)
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range needed {
		file, relative := strings.CutPrefix(name, "@rpath/")
		switch {
		case relative:
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				return nil, fmt.Errorf("%s needs %s: %w", path, name, err)
			}
		case !strings.HasPrefix(name, "/usr/lib/") && !strings.HasPrefix(name, "/System/Library/"):
			return nil, fmt.Errorf("%s needs %s, which is not part of macOS", path, name)
		}
	}
	return searched, nil
}

// sameFunctions checks that a libmlx has all functions of the one for older systems, so that
// the same libmlxc works with both.
func sameFunctions(old, newer string) error {
	a, err := exported(old)
	if err != nil {
		return err
	}
	b, err := exported(newer)
	if err != nil {
		return err
	}
	for name := range a {
		if !b[name] {
			return fmt.Errorf("%s has no %s, %s has", newer, name, old)
		}
	}
	return nil
}

// exported returns the names of the symbols that a library offers.
func exported(path string) (map[string]bool, error) {
	f, err := macho.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if f.Symtab == nil {
		return nil, fmt.Errorf("%s has no symbols", path)
	}
	// of a symbol's type these bits say private, defined in a section, and external
	const private, kind, section, external = 0x10, 0x0e, 0x0e, 0x01
	names := map[string]bool{}
	for _, s := range f.Symtab.Syms {
		if s.Type&private == 0 && s.Type&kind == section && s.Type&external != 0 {
			names[s.Name] = true
		}
	}
	return names, nil
}

// macRequires returns the oldest macOS on which the program and the libraries for the oldest
// one run.
func macRequires(stage string) (newest macos.Version, err error) {
	err = filepath.WalkDir(stage, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), "macos") && path != stage {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Base(path) != "gomflux" && filepath.Ext(path) != ".dylib" || filepath.Base(filepath.Dir(path)) == "completions" {
			return nil
		}
		v, err := macos.Minimum(path)
		if v.Compare(newest) > 0 {
			newest = v
		}
		return err
	})
	return newest, err
}

// macLibraries packs what an archive for macOS has of MLX, on any system, and returns the archive's
// path. libmlxc and the program are missing: they have to be built on a Mac.
func macLibraries(out string) (path string, err error) {
	stage, err := os.MkdirTemp("", "gomflux-dist-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(stage)
	lib := filepath.Join(stage, "lib")
	if err := copyMacLibraries(lib, setupMacOS, ""); err != nil {
		return "", err
	}
	return archive(out, stage, "gomflux-darwin-arm64-libraries")
}
