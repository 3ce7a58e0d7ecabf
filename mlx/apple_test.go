package mlx

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/macos"
)

// TestFindLibrary checks which library is taken on a version of macOS. A line of have is a
// folder with libmlxc and its libmlx.
func TestFindLibrary(t *testing.T) {
	both := []string{"lib", "lib/macos26.2"}
	for _, c := range []struct {
		name    string
		have    []string
		folders []string
		system  macos.Version
		want    string
	}{
		{"not macOS", both, []string{"lib"}, macos.Version{}, "lib"},
		{"older", both, []string{"lib"}, macos.Version{Major: 15, Minor: 7}, "lib"},
		{"same major version", both, []string{"lib"}, macos.Version{Major: 26, Minor: 1}, "lib"},
		{"the same", both, []string{"lib"}, macos.Version{Major: 26, Minor: 2}, "lib/macos26.2"},
		{"newer", both, []string{"lib"}, macos.Version{Major: 27}, "lib/macos26.2"},
		{"the newest that runs", []string{"lib", "lib/macos26.2", "lib/macos26.10", "lib/macos28"}, []string{"lib"},
			macos.Version{Major: 27, Minor: 3}, "lib/macos26.10"},
		{"an empty folder for it", []string{"lib", "lib/macos26.2/other"}, []string{"lib"}, macos.Version{Major: 26, Minor: 4}, "lib"},
		{"only the newer one, too new", []string{"lib/macos26.2"}, []string{"lib"}, macos.Version{Major: 15}, ""},
		{"other names", []string{"lib", "lib/macosX", "lib/macos"}, []string{"lib"}, macos.Version{Major: 26, Minor: 4}, "lib"},
		{"the first folder wins", []string{"a", "b/macos26.2"}, []string{"none", "a", "b"}, macos.Version{Major: 26, Minor: 4}, "a"},
		{"a folder named directly", both, []string{"lib/macos26.2"}, macos.Version{Major: 15}, "lib/macos26.2"},
		{"a name with pattern's characters", []string{"l[i]*b", "l[i]*b/macos26.2"}, []string{"l[i]*b"},
			macos.Version{Major: 26, Minor: 2}, "l[i]*b/macos26.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range c.have {
				for _, name := range []string{libName("mlxc"), "mlx/lib/" + libName("mlx")} {
					path := filepath.Join(root, dir, name)
					if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, nil, 0o666); err != nil {
						t.Fatal(err)
					}
				}
			}
			var folders []string
			for _, dir := range c.folders {
				folders = append(folders, filepath.Join(root, dir))
			}
			var want Library
			if c.want != "" {
				want.MLXC = filepath.Join(root, c.want, libName("mlxc"))
				want.MLX = filepath.Join(root, c.want, "mlx", "lib", libName("mlx"))
			}
			got, tried := findLibrary(folders, c.system)
			if got != want {
				t.Errorf("%+v, expected %+v; tried %v", got, want, tried)
			}
			if slices.Contains(tried, got.MLXC) || got.MLXC == "" && len(tried) == 0 {
				t.Errorf("tried %v for %v", tried, got)
			}
		})
	}
}

func TestOpensFirst(t *testing.T) {
	for _, c := range []struct {
		system, mlx string
		want        bool
	}{
		{"linux", "/lib/mlx/lib/libmlx.so", true}, {"linux", "/lib/libmlx.so", true},
		{"darwin", "/lib/mlx/lib/libmlx.dylib", false}, {"darwin", "/lib/libmlx.dylib", true},
	} {
		if got := opensFirst(c.system, Library{MLXC: "/lib/libmlxc.dylib", MLX: c.mlx}); got != c.want {
			t.Errorf("%s, %s: %v, expected %v", c.system, c.mlx, got, c.want)
		}
	}
}

func TestHasNeuralAccelerators(t *testing.T) {
	for architecture, want := range map[string]bool{
		"applegpu_g13g": false, "applegpu_g16s": false, "applegpu_g17g": true, "applegpu_g17s": true, "applegpu_g17p": false,
		"applegpu_g18p": true, "applegpu_g20d": true, "applegpu_g": false, "applegpu_gxs": false, "sm_90": false, "arm64": false, "": false,
	} {
		if got := (DeviceInfo{Device: GPU, Architecture: architecture}).HasNeuralAccelerators(); got != want {
			t.Errorf("%q: %v, expected %v", architecture, got, want)
		}
	}
	if (DeviceInfo{Device: GPU, Name: "Apple Paravirtual device", Architecture: "applegpu_g17g"}).HasNeuralAccelerators() {
		t.Error("a virtual GPU has neural accelerators")
	}
}

// TestMacOf compares descriptions of Macs with what MLX reported on some.
func TestMacOf(t *testing.T) {
	for memory, want := range map[int]DeviceInfo{
		7:  {WorkingSet: 5010800640, LargestArray: 3758096384}, // a virtual machine of GitHub
		16: {WorkingSet: 11453251584, LargestArray: 8589934592},
		32: {WorkingSet: 22906503168, LargestArray: 16 << 30},
		64: {WorkingSet: 48 << 30, LargestArray: 32 << 30},
	} {
		got := MacOf(memory)
		off := int64(got.WorkingSet) - int64(want.WorkingSet)
		if off < -1<<16 || off > 1<<16 || got.LargestArray != want.LargestArray {
			t.Errorf("%d GiB: %+v, expected %+v", memory, got, want)
		}
		if d := got.Device; d.Backend() != BackendMetal || d == CPU || Use(d) == nil {
			t.Errorf("%d GiB: device %v can compute here, or is not Metal's", memory, d)
		}
	}
}

// TestRowsAtOnce checks that kernels on Metal are bounded, and others are not.
func TestRowsAtOnce(t *testing.T) {
	for _, c := range []struct {
		device Device
		rows   int
		flops  float64
		want   int
	}{
		{CPU, 1 << 20, 1e12, 1 << 20}, {OtherMac, 100, 2e10, 100}, {OtherMac, 101, 2e10, 100}, {OtherMac, 7, 1e13, 1}, {OtherMac, 0, 1, 0},
	} {
		if got := c.device.RowsAtOnce(c.rows, c.flops); got != c.want {
			t.Errorf("%v: %d of %d rows with %g operations, expected %d", c.device, got, c.rows, c.flops, c.want)
		}
	}
}

// TestMacErrors checks that programs and libraries that a Mac refuses have a hint.
func TestMacErrors(t *testing.T) {
	for system, refused := range map[[2]string]bool{
		{"darwin", "amd64"}: true, {"darwin", "arm64"}: false, {"linux", "amd64"}: false, {"linux", "arm64"}: false,
	} {
		err := checkChip(system[0], system[1])
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "Rosetta") {
			t.Errorf("%v: error %v", system, err)
		}
	}
	for text, hint := range map[string]string{
		"code signature in <1> 'lib.dylib' not valid for use in process: library load disallowed " +
			"by system policy": "xattr -dr com.apple.quarantine",
		"mach-o file, but is an incompatible architecture (have 'arm64', need 'x86_64')": "uname -m prints arm64",
		"no such file": "/a/lib.dylib: no such file",
	} {
		cause := errors.New(text)
		if err := openError("/a/lib.dylib", cause); !errors.Is(err, cause) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: error %v", text, err)
		}
	}
}
