package mlx

import (
	"runtime"
	"strings"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// LoadSafetensors reads the named tensors of a safetensors file lazily: their bytes are
// read when the arrays are first evaluated. Unlike operations it returns its errors,
// since it does I/O.
//
// MLX 0.32 does not detect failed reads of less than 32 MiB, so the caller must check
// after an evaluation that the file is still long enough. MLX hardly checks the file:
// validate its header first (package checkpoint), and let path refer to the same open
// file. A path with a % is refused, since mlx-c uses paths in printf formats.
func LoadSafetensors(path string, names []string) (tensors map[string]*Array, err error) {
	defer catch(&err)
	if strings.Contains(path, "%") {
		raise("cannot load %s: mlx-c reads the %% in the path as a printf format (rename the file or its folder)", path)
	}
	s := stream
	if runtime.GOOS == "darwin" {
		s = streams[CPU] // Metal has no kernel for loading
	}
	var arrays, metadata uintptr = mlxc.MapStringToArrayNew(), mlxc.MapStringToStringNew()
	defer func() {
		mlxc.MapStringToArrayFree(arrays)
		mlxc.MapStringToStringFree(metadata)
	}()
	check(mlxc.LoadSafetensors(&arrays, &metadata, path, s))
	found := make(map[string]*Array, len(names))
	for _, name := range names {
		var h uintptr
		if mlxc.MapStringToArrayGet(&h, arrays, name) != 0 {
			takeMessage()
			raise("no tensor %s in %s", name, path)
		}
		found[name] = wrap(h)
	}
	return found, nil
}
