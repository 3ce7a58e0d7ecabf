package mlx

import (
	"runtime"
	"strings"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// LoadSafetensors reads the named tensors of a safetensors file, lazily: their
// bytes are read when they are first evaluated. MLX 0.32 does not notice when
// such a read of less than 32 MiB fails, so who evaluates them must look whether
// the file still reaches that far. MLX checks little of the file,
// so its header must have been validated (package weights), and path should
// stand for the descriptor that was. A path with a % is refused: mlx-c puts
// paths into messages that it then takes for printf formats.
//
// It returns an error, since it does I/O.
func LoadSafetensors(path string, names []string) (tensors map[string]*Array, err error) {
	defer catch(&err)
	if strings.Contains(path, "%") {
		raise("cannot load %s: mlx-c would take the %% in the path for a format; rename the file or its folder", path)
	}
	s := stream
	if runtime.GOOS == "darwin" {
		s = streams[CPU] // Metal has no kernel that loads
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
