package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/macos"
)

// A library is what a made Mach-O library says.
type library struct {
	cpu      uint32 // arm64 if 0
	minimum  uint32 // 26.2 is 0x1a0200
	needs    []string
	searches []string
	symbols  []string
}

// bytes returns the library, with no code.
func (l library) bytes() string {
	var commands bytes.Buffer
	count := uint32(0)
	command := func(id uint32, words []uint32, text string) {
		if text != "" {
			text += "\x00"
			text += strings.Repeat("\x00", -len(text)&7)
		}
		size := uint32(8 + 4*len(words) + len(text))
		binary.Write(&commands, binary.LittleEndian, append([]uint32{id, size}, words...))
		commands.WriteString(text)
		count++
	}
	for _, name := range l.needs {
		command(0xc, []uint32{24, 0, 0, 0}, name) // LC_LOAD_DYLIB
	}
	for _, dir := range l.searches {
		command(0x8000001c, []uint32{12}, dir) // LC_RPATH
	}
	if l.minimum != 0 {
		command(0x32, []uint32{1, l.minimum, l.minimum, 0}, "") // LC_BUILD_VERSION
	}
	names, table := "\x00", bytes.Buffer{}
	for _, s := range l.symbols {
		binary.Write(&table, binary.LittleEndian, struct {
			Name       uint32
			Type, Sect uint8
			Desc       uint16
			Value      uint64
		}{uint32(len(names)), 0x0f, 1, 0, 0})
		names += s + "\x00"
	}
	start := uint32(32 + commands.Len() + 24)
	command(0x2, []uint32{start, uint32(len(l.symbols)), start + uint32(table.Len()), uint32(len(names))}, "") // LC_SYMTAB
	cpu := l.cpu
	if cpu == 0 {
		cpu = 0x0100000c
	}
	var file bytes.Buffer
	binary.Write(&file, binary.LittleEndian, []uint32{0xfeedfacf, cpu, 0, 6, count, uint32(commands.Len()), 0, 0})
	return file.String() + commands.String() + table.String() + names
}

// Versions as in LC_BUILD_VERSION.
const (
	macOS15 = 15 << 16
	macOS26 = 26<<16 | 2<<8
)

// wheels makes what set-up leaves of two wheels, and a libmlxc, in dir.
func wheels() map[string]string {
	system := "/usr/lib/libSystem.B.dylib"
	mlx := library{minimum: macOS26, needs: []string{system, "@rpath/libjaccl.dylib"}, symbols: []string{"_add", "_new"}}
	return map[string]string{
		"macos/a/mlx/lib/libmlx.dylib":   mlx.bytes(),
		"macos/a/mlx/lib/libjaccl.dylib": library{minimum: macOS26, needs: []string{system}}.bytes(),
		"macos/a/mlx/lib/mlx.metallib":   "MTLB ... steel_gemm_fused_nax_nn ...",
		"macos/a/mlx/include/mlx/mlx.h":  "",
		"macos/b/mlx/lib/libmlx.dylib":   library{minimum: macOS15, needs: []string{system}, symbols: []string{"_add"}}.bytes(),
		"macos/b/mlx/lib/mlx.metallib":   "MTLB ... steel_gemm_fused_nn ...",
		"macos/b/mlx/lib/libmlx.a":       "",
		"macos/b/mlx/lib/cmake/x.cmake":  "",
		"libmlxc.dylib": library{minimum: macOS15, needs: []string{system, "@rpath/libmlx.dylib"},
			searches: []string{"@loader_path/mlx/lib"}}.bytes(),
	}
}

func TestCopyMacLibraries(t *testing.T) {
	intel := library{cpu: 0x01000007, minimum: macOS15}.bytes()
	for _, c := range []struct {
		name, file, text string // the file that is other than it should be; removed if text is ""
		err              string
	}{
		{"as it should be", "", "", ""},
		{"one wheel", "macos/a/mlx/lib/libmlx.dylib", "",
			"1 builds of MLX for macOS in macos, expected 2 (run scripts/setup.sh --with-macos)"},
		{"a library that is needed", "macos/a/mlx/lib/libjaccl.dylib", "", "needs @rpath/libjaccl.dylib"},
		{"a library for a newer macOS", "macos/a/mlx/lib/libjaccl.dylib", library{minimum: 26<<16 | 4<<8}.bytes(), "needs macOS 26.4"},
		{"a library of Homebrew", "macos/b/mlx/lib/libmlx.dylib",

			library{minimum: macOS15, needs: []string{"/opt/homebrew/lib/libx.dylib"}, symbols: []string{"_add"}}.bytes(),
			"not part of macOS"},
		{"for Intel", "macos/b/mlx/lib/libmlx.dylib", intel, "expected a library for arm64"},
		{"no version", "macos/b/mlx/lib/libmlx.dylib", library{}.bytes(), "no LC_BUILD_VERSION"},
		{"no kernels", "macos/b/mlx/lib/mlx.metallib", "", "mlx.metallib"},
		{"kernels without accelerators", "macos/a/mlx/lib/mlx.metallib", "MTLB", "kernels for neural accelerators: false"},
		{"a function that is gone", "macos/a/mlx/lib/libmlx.dylib",
			library{minimum: macOS26, symbols: []string{"_new"}}.bytes(), "has no _add"},
		{"libmlxc without a search path", "libmlxc.dylib", library{minimum: macOS15, needs: []string{"@rpath/libmlx.dylib"}}.bytes(),
			"expected @loader_path/mlx/lib"},
		{"no libmlxc", "libmlxc.dylib", "", "libmlxc.dylib"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			files := wheels()
			if c.file != "" {
				files[c.file] = c.text
				if c.text == "" {
					delete(files, c.file)
				}
			}
			write(t, ".", files)
			err := copyMacLibraries("out/lib", "macos", "libmlxc.dylib")
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, expected %q", err, c.err)
			}
			if err != nil {
				return
			}
			found, err := filepath.Glob("out/lib/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, pattern := range []string{"out/lib/mlx/lib/*", "out/lib/macos26.2/*", "out/lib/macos26.2/mlx/lib/*"} {
				more, _ := filepath.Glob(pattern)
				found = append(found, more...)
			}
			const want = "libmlxc.dylib macos26.2 mlx mlx/lib/libmlx.dylib mlx/lib/mlx.metallib macos26.2/libmlxc.dylib macos26.2/mlx " +
				"macos26.2/mlx/lib/libjaccl.dylib macos26.2/mlx/lib/libmlx.dylib macos26.2/mlx/lib/mlx.metallib"
			if got := strings.ReplaceAll(strings.Join(found, " "), "out/lib/", ""); got != want {
				t.Errorf("files %s, expected %s", got, want)
			}
			// what README.txt says is about the libraries that every Mac uses
			if v, err := macRequires("out"); err != nil || v != (macos.Version{Major: 15}) {
				t.Errorf("needs macOS %v, %v", v, err)
			}
		})
	}
}

// TestMacWheels checks the libraries that set-up fetched, where it did.
func TestMacWheels(t *testing.T) {
	from := filepath.Join("..", "..", setupMacOS)
	if _, err := os.Stat(from); err != nil {
		t.Skip("no MLX for macOS: scripts/setup.sh --with-macos fetches it")
	}
	lib := filepath.Join(t.TempDir(), "lib")
	if err := copyMacLibraries(lib, from, ""); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]macos.Version{"mlx": {Major: 15}, "macos26.2/mlx": {Major: 26, Minor: 2}} {
		if v, err := macos.Minimum(filepath.Join(lib, dir, "lib", "libmlx.dylib")); err != nil || v != want {
			t.Errorf("%s: %v, %v, expected %v", dir, v, err, want)
		}
	}
}

// TestSetupMac checks which wheel set-up uses on a version of macOS.
func TestSetupMac(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	for version, want := range map[string]string{
		"13.7": "", "9": "", "14": "14", "14.7.1": "14", "15.0": "15", "15.7.2": "15", "16.1": "15", "26": "15", "26.0.1": "15",
		"26.1": "15", "26.1.2": "15", "26.2": "26", "26.2.1": "26", "26.10": "26", "26.11.1": "26", "27.0": "26",
	} {
		bin := t.TempDir()
		write(t, bin, map[string]string{
			"uname":   "#!/bin/sh\ncase $1 in -s) echo Darwin ;; -m) echo arm64 ;; *) echo Darwin arm64 ;; esac\n",
			"sw_vers": "#!/bin/sh\necho " + version + "\n",
		})
		for _, name := range []string{"uname", "sw_vers"} {
			if err := os.Chmod(filepath.Join(bin, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(bash, filepath.Join("..", "setup.sh"), "--list", "--with-macos")
		cmd.Env = slices.Concat(os.Environ(), []string{"PATH=" + bin + ":" + os.Getenv("PATH")})
		out, err := cmd.CombinedOutput()
		expected := regexp.MustCompile(`^mlx-metal [0-9.]+ macosx_` + want + "_0_arm64\n" +
			"mlx-metal [0-9.]+ macosx_15_0_arm64\nmlx-metal [0-9.]+ macosx_26_0_arm64\n$")
		if want == "" {
			expected = regexp.MustCompile(`^set-up: MLX needs macOS 14 or newer, this is ` + version + "\n$")
		}
		if !expected.Match(out) || (err == nil) != (want != "") {
			t.Errorf("macOS %s: %v, %s, expected %v", version, err, out, expected)
		}
	}
}
