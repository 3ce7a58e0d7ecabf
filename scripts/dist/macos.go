// Command dist checks what scripts/dist.sh has put into the folder of an archive for macOS, on
// any system, and prints the oldest macOS on which the program and the libraries for the oldest
// one run. Without the program, which only a Mac builds, it checks MLX alone.
package main

import (
	"bytes"
	"debug/macho"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/macos"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("dist: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: go run ./scripts/dist FOLDER")
	}
	version, err := check(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(version)
}

// check checks the build of MLX in lib and those in folders such as macos26.2 in it, from which
// the program chooses. Each has its own copy of libmlxc, which finds libmlx relative to itself.
func check(folder string) (needs macos.Version, err error) {
	lib := filepath.Join(folder, "lib")
	newer, err := filepath.Glob(filepath.Join(lib, "macos*"))
	if err != nil {
		return needs, err
	}
	if len(newer) == 0 {
		return needs, fmt.Errorf("%s has no build of MLX for a newer macOS", lib)
	}
	program := filepath.Join(folder, "gomflux")
	_, err = os.Stat(program)
	complete := err == nil
	functions, err := exported(libmlx(lib))
	if err != nil {
		return needs, err
	}
	for _, dir := range append(newer, lib) { // what lib needs is what the archive does
		if needs, err = checkBuild(dir, complete); err != nil {
			return needs, err
		}
		if name := "macos" + needs.String(); dir != lib && filepath.Base(dir) != name {
			return needs, fmt.Errorf("the build in %s is for %s", dir, name)
		}
		// so that the same libmlxc works with both
		has, err := exported(libmlx(dir))
		if err != nil {
			return needs, err
		}
		for name := range functions {
			if !has[name] {
				return needs, fmt.Errorf("%s has no %s, %s has", libmlx(dir), name, libmlx(lib))
			}
		}
	}
	if !complete {
		return needs, nil
	}
	for _, path := range []string{program, filepath.Join(lib, "libmlxc.dylib")} {
		minimum, err := macos.Minimum(path)
		if err != nil {
			return needs, err
		}
		if minimum.Compare(needs) > 0 {
			needs = minimum
		}
	}
	return needs, nil
}

func libmlx(dir string) string { return filepath.Join(dir, "mlx", "lib", "libmlx.dylib") }

// acceleratorKernel is in the names of kernels that use the M5's neural accelerators.
const acceleratorKernel = "steel_gemm_fused_nax"

// checkBuild checks that the libraries of a folder run on libmlx's version of macOS, which it
// returns, and find each other: libmlxc leads to mlx/lib, where all that they need besides the
// system's lies. The build for macOS 26.2 must have the kernels for which it is packed.
func checkBuild(dir string, withMLXC bool) (version macos.Version, err error) {
	if version, err = macos.Minimum(libmlx(dir)); err != nil {
		return version, err
	}
	inner := filepath.Dir(libmlx(dir))
	libraries, err := filepath.Glob(filepath.Join(inner, "*.dylib"))
	if err != nil {
		return version, err
	}
	for _, path := range libraries {
		minimum, err := macos.Minimum(path)
		if err != nil {
			return version, err
		}
		if minimum.Compare(version) > 0 {
			return version, fmt.Errorf("%s needs macOS %v, its folder is for %v", path, minimum, version)
		}
		if _, err := checkNeeds(path, inner); err != nil {
			return version, err
		}
	}
	metallib, err := os.ReadFile(filepath.Join(inner, "mlx.metallib"))
	if err != nil {
		return version, err
	}
	if has := bytes.Contains(metallib, []byte(acceleratorKernel)); has != (version.Major >= 26) {
		return version, fmt.Errorf("%s/mlx.metallib, for macOS %v: kernels for neural accelerators: %v", inner, version, has)
	}
	if !withMLXC {
		return version, nil
	}
	mlxc := filepath.Join(dir, "libmlxc.dylib")
	searched, err := checkNeeds(mlxc, inner)
	if err == nil && !slices.Contains(searched, "@loader_path/mlx/lib") {
		err = fmt.Errorf("%s searches %q, expected @loader_path/mlx/lib", mlxc, searched)
	}
	return version, err
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
