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

// archive makes what an archive for macOS has.
func archive() map[string]string {
	system := "/usr/lib/libSystem.B.dylib"
	mlx := library{minimum: macOS26, needs: []string{system, "@rpath/libjaccl.dylib"}, symbols: []string{"_add", "_new"}}
	mlxc := library{minimum: macOS15, needs: []string{system, "@rpath/libmlx.dylib"}, searches: []string{"@loader_path/mlx/lib"}}
	return map[string]string{
		"gomflux":                              library{minimum: 14 << 16}.bytes(),
		"completions/gomflux":                  "complete",
		"lib/libmlxc.dylib":                    mlxc.bytes(),
		"lib/mlx/lib/libmlx.dylib":             library{minimum: macOS15, needs: []string{system}, symbols: []string{"_add"}}.bytes(),
		"lib/mlx/lib/mlx.metallib":             "MTLB ... steel_gemm_fused_nn ...",
		"lib/macos26.2/libmlxc.dylib":          mlxc.bytes(),
		"lib/macos26.2/mlx/lib/libmlx.dylib":   mlx.bytes(),
		"lib/macos26.2/mlx/lib/libjaccl.dylib": library{minimum: macOS26, needs: []string{system}}.bytes(),
		"lib/macos26.2/mlx/lib/mlx.metallib":   "MTLB ... steel_gemm_fused_nax_nn ...",
	}
}

func TestCheck(t *testing.T) {
	const older, newer = "lib/mlx/lib/", "lib/macos26.2/mlx/lib/"
	intel := library{cpu: 0x01000007, minimum: macOS15}.bytes()
	for _, c := range []struct {
		name, file, text string // the file that is other than it should be; removed if text is ""
		needs, err       string
	}{
		{"as it should be", "", "", "15.0", ""},
		{"MLX alone", "gomflux", "", "15.0", ""},
		{"a program for a newer macOS", "gomflux", library{minimum: 15<<16 | 5<<8}.bytes(), "15.5", ""},
		{"a libmlxc for a newer macOS", "lib/libmlxc.dylib", library{minimum: 15<<16 | 4<<8, needs: []string{"@rpath/libmlx.dylib"},
			searches: []string{"@loader_path/mlx/lib"}}.bytes(), "15.4", ""},
		{"one build", newer + "libmlx.dylib", "", "", "libmlx.dylib"},
		{"a folder for another macOS", newer + "libmlx.dylib",
			library{minimum: macOS26 | 1<<8, symbols: []string{"_add"}}.bytes(), "", "lib/macos26.2 is for macos26.3"},
		{"a library that is needed", newer + "libjaccl.dylib", "", "", "needs @rpath/libjaccl.dylib"},
		{"a library for a newer macOS", newer + "libjaccl.dylib", library{minimum: 26<<16 | 4<<8}.bytes(), "", "needs macOS 26.4"},
		{"a library of Homebrew", older + "libmlx.dylib",
			library{minimum: macOS15, needs: []string{"/opt/homebrew/lib/libx.dylib"}, symbols: []string{"_add"}}.bytes(), "",
			"not part of macOS"},
		{"for Intel", older + "libmlx.dylib", intel, "", "expected a library for arm64"},
		{"no version", older + "libmlx.dylib", library{}.bytes(), "", "no LC_BUILD_VERSION"},
		{"no kernels", older + "mlx.metallib", "", "", "mlx.metallib"},
		{"kernels without accelerators", newer + "mlx.metallib", "MTLB", "", "kernels for neural accelerators: false"},
		{"a function that is gone", newer + "libmlx.dylib",
			library{minimum: macOS26, symbols: []string{"_new"}}.bytes(), "", "has no _add"},
		{"libmlxc without a search path", "lib/libmlxc.dylib",
			library{minimum: macOS15, needs: []string{"@rpath/libmlx.dylib"}}.bytes(), "", "expected @loader_path/mlx/lib"},
		{"no libmlxc", "lib/macos26.2/libmlxc.dylib", "", "", "libmlxc.dylib"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			files := archive()
			if c.file != "" {
				files[c.file] = c.text
				if c.text == "" {
					delete(files, c.file)
				}
			}
			write(t, ".", files)
			needs, err := check(".")
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, expected %q", err, c.err)
			}
			if err == nil && needs.String() != c.needs {
				t.Errorf("needs macOS %v, expected %s", needs, c.needs)
			}
		})
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
