package mlx

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/internal/macos"
	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// EnvLibrary is the environment variable for the folder that holds libmlx and libmlxc.
// If it is set, no other folder is searched.
const EnvLibrary = "GOMFLUX_MLX"

// ABI is the series of mlx-c versions that can be opened.
const ABI = mlxc.ABI

// A Library has the paths of the opened files.
type Library struct {
	MLXC string // path of libmlxc
	MLX  string // path of libmlx, in the same folder or below, or "" if the system's loader found it
	BLAS string // the BLAS library that was opened in place of MLX's own (Linux), or ""
}

var library struct {
	once  sync.Once
	found Library
	err   error
}

// Open finds and opens the MLX libraries. Do calls it. Call it directly to see errors
// early or to get the paths. It may be called from any goroutine.
func Open() (Library, error) {
	library.once.Do(func() { library.found, library.err = openLibrary() })
	return library.found, library.err
}

func openLibrary() (Library, error) {
	if err := checkChip(runtime.GOOS, runtime.GOARCH); err != nil {
		return Library{}, err
	}
	setDefaults()
	lib, tried := findLibrary(libraryFolders(), macos.System())
	if lib.MLXC == "" {
		return lib, fmt.Errorf("mlx: library %s not found; run make setup, or set %s to the folder that holds it; tried:\n\t%s",
			libName("mlxc"), EnvLibrary, strings.Join(tried, "\n\t"))
	}
	lib.BLAS = openBLAS(filepath.Dir(lib.MLXC))
	if lib.MLX != "" && opensFirst(runtime.GOOS, lib) {
		if err := mlxc.OpenGlobal(lib.MLX); err != nil {
			return lib, openError(lib.MLX, err)
		}
	}
	if err := mlxc.Open(lib.MLXC); err != nil {
		return lib, openError(lib.MLXC, err)
	}
	return lib, nil
}

// findLibrary finds libmlxc, and the libmlx that belongs to it, in the first of the folders
// that has it. If a folder also has builds for newer versions of macOS, the newest that runs
// on this system is taken. Paths without a library are listed in tried.
func findLibrary(folders []string, system macos.Version) (lib Library, tried []string) {
	for _, folder := range folders {
		for _, dir := range append(macOSFolders(folder, system), folder) {
			path := filepath.Join(dir, libName("mlxc"))
			if _, err := os.Stat(path); err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					path += ": " + err.Error()
				}
				tried = append(tried, path)
				continue
			}
			lib.MLXC = path
			for _, path := range []string{filepath.Join(dir, libName("mlx")), filepath.Join(dir, "mlx", "lib", libName("mlx"))} {
				if lib.MLX == "" && exists(path) {
					lib.MLX = path
				}
			}
			return lib, tried
		}
	}
	return lib, tried
}

// macOSFolder is the start of the name of a folder with a build of MLX for newer versions of
// macOS; the rest is the oldest version on which it runs, as in macos26.2.
const macOSFolder = "macos"

// macOSFolders lists the folders in dir with builds for newer versions of macOS that run on
// this system, the newest first.
func macOSFolders(dir string, system macos.Version) []string {
	if system == (macos.Version{}) {
		return nil
	}
	paths, _ := filepath.Glob(filepath.Join(quoteGlob(dir), macOSFolder+"*")) // the pattern is valid
	minimum := map[string]macos.Version{}
	for _, path := range paths {
		v, err := macos.Parse(strings.TrimPrefix(filepath.Base(path), macOSFolder))
		if err == nil && v.Compare(system) <= 0 {
			minimum[path] = v
		}
	}
	return slices.SortedFunc(maps.Keys(minimum), func(a, b string) int { return minimum[b].Compare(minimum[a]) })
}

// quoteGlob quotes the characters of a path that have a meaning in a pattern.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// opensFirst reports whether libmlx is to be opened before libmlxc, so that libmlxc uses this
// one (which may be a CUDA build) whatever its own search path is. On macOS the libmlx of a
// wheel has no search path of its own: only libmlxc's leads it to the libraries beside it.
func opensFirst(system string, lib Library) bool {
	return system != "darwin" || filepath.Dir(lib.MLX) == filepath.Dir(lib.MLXC)
}

// checkChip returns an error for a program that is built for an Intel Mac.
func checkChip(system, architecture string) error {
	if system != "darwin" || architecture == "arm64" {
		return nil
	}
	return fmt.Errorf("mlx: this gomflux is built for %s, and MLX needs a Mac with an Apple chip: if this is one, Rosetta runs the wrong "+
		"build; install the one for arm64, or build it in a shell in which uname -m prints arm64", architecture)
}

func openError(path string, err error) error {
	for sign, hint := range map[string]string{
		"library load disallowed":   "macOS marks files of a browser's download; to remove the mark: xattr -dr com.apple.quarantine FOLDER",
		"incompatible architecture": "the library is for another chip; run make setup in a shell in which uname -m prints arm64",
	} {
		if strings.Contains(err.Error(), sign) {
			err = fmt.Errorf("%w (%s)", err, hint)
		}
	}
	if errors.Is(err, mlxc.ErrABI) {
		return fmt.Errorf("mlx: %s: %w; run make setup, which builds the right one, and set %s if another is found first", path, err,
			EnvLibrary)
	}
	return fmt.Errorf("mlx: cannot open %s: %w", path, err)
}

// setDefaults changes some defaults of MLX through its environment variables, which MLX
// reads when it is opened.
func setDefaults() {
	for name, value := range map[string]string{
		// this check ends a run on CUDA with an exception after a number of graphs in a row that
		// are not in the cache
		"MLX_ENABLE_CACHE_THRASHING_CHECK": "0",
		"MLX_CUDA_GRAPH_CACHE_SIZE":        "4000",
		// with TF32, MLX multiplies float32 matrices on GPUs with 10 bits of precision.
		// Models compute in bfloat16 there by default, and in float32 only where precision
		// is asked for
		"MLX_ENABLE_TF32": "0",
	} {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
}

// libraryFolders lists the folders where libmlxc may be, in the order of the search.
func libraryFolders() []string {
	if dir := os.Getenv(EnvLibrary); dir != "" {
		return []string{dir, filepath.Join(dir, "lib")}
	}
	var dirs []string
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		dir := filepath.Dir(exe)
		dirs = append(dirs, dir, filepath.Join(dir, "lib"), filepath.Join(dir, "..", "lib"), filepath.Join(dir, "..", ".setup", "lib"))
	}
	if root := moduleRoot(); root != "" {
		dirs = append(dirs, filepath.Join(root, ".setup", "lib"))
	}
	switch runtime.GOOS {
	case "darwin":
		dirs = append(dirs, "/opt/homebrew/lib", "/usr/local/lib")
	default:
		dirs = append(dirs, "/usr/local/lib", "/usr/lib", "/usr/lib/"+debianTriplet())
	}
	return dirs
}

// moduleRoot searches the working folder and its parents for this module's go.mod: under
// go test and go run, the executable is in a temporary folder.
func moduleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/gomflux/gomflux\n") {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// openBLAS opens a fast BLAS before libmlx on Linux. MLX's wheel is linked to the slow
// reference BLAS, but symbols of a library that was opened earlier, globally, take
// precedence: 200 instead of 6 GFLOP/s on two cores. A library in dir, where releases
// have one, is preferred to the system's.
func openBLAS(dir string) string {
	if runtime.GOOS != "linux" {
		return ""
	}
	if path := filepath.Join(dir, "libopenblas.so.0"); exists(path) {
		for _, needed := range []string{"libquadmath.so.0", "libgfortran.so.5"} {
			if path := filepath.Join(dir, needed); exists(path) {
				mlxc.OpenGlobal(path) // if this fails, opening OpenBLAS below fails too
			}
		}
		if mlxc.OpenGlobal(path) == nil {
			return path
		}
	}
	for _, name := range []string{"libopenblas.so.0", "libopenblas.so", "libblis.so.4", "libmkl_rt.so.2"} {
		if mlxc.OpenGlobal(name) == nil {
			return name
		}
	}
	return ""
}

func libName(name string) string {
	if runtime.GOOS == "darwin" {
		return "lib" + name + ".dylib"
	}
	return "lib" + name + ".so"
}

func debianTriplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
