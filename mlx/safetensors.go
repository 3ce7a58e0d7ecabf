package mlx

import (
	"runtime"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// LoadSafetensors reads the named tensors of a safetensors file, lazily: their
// bytes are read when they are first evaluated. MLX checks little of the file,
// so its header must have been validated (package weights), and path should
// stand for the descriptor that was (mlx-c also takes a % in a path for a
// format).
//
// It returns an error, since it does I/O.
func LoadSafetensors(path string, names []string) (tensors map[string]*Array, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Error:
			err = p
		default:
			panic(p)
		}
	}()
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
	tensors = make(map[string]*Array, len(names))
	for _, name := range names {
		var h uintptr
		check(mlxc.MapStringToArrayGet(&h, arrays, name))
		tensors[name] = wrap(h)
	}
	return tensors, nil
}
