// Package mlxc binds the functions of mlx-c 0.7 with purego: no cgo, no
// headers and no library at build time. bindings.go is generated.
package mlxc

import (
	"errors"
	"fmt"

	"github.com/ebitengine/purego"
)

type function struct {
	name string
	fn   any
}

// Open opens the library libmlxc at path and binds every function.
//
// All symbols are resolved at once (RTLD_NOW), so that a libmlxc built against
// another libmlx fails here, with the symbol's name, and not in mid-run.
func Open(path string) error {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	if err := checkABI(lib); err != nil {
		return err
	}
	for _, f := range functions {
		addr, err := purego.Dlsym(lib, f.name)
		if err != nil {
			return fmt.Errorf("this libmlxc has no function %s: %w", f.name, err)
		}
		purego.RegisterFunc(f.fn, addr)
	}
	openCUDAKernel(lib)
	if addr, err := purego.Dlsym(purego.RTLD_DEFAULT, "malloc_trim"); err == nil {
		purego.RegisterFunc(&MallocTrim, addr)
	}
	return nil
}

// MallocTrim returns the freed memory that the C library keeps to the system, except pad bytes, and
// reports whether there was some. It is glibc's malloc_trim, nil with other C libraries.
var MallocTrim func(pad uintptr) bool

// OpenGlobal opens a library that later ones are to take symbols from.
func OpenGlobal(path string) error {
	_, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	return err
}

// ABI is the series of mlx-c's versions that the functions are of.
const ABI = "0.7"

// ErrABI says that a libmlxc is not of that series. Other versions have the
// same function names with other arguments, which no loader notices.
var ErrABI = errors.New("wrong mlx-c version")

// checkABI tells mlx-c's versions apart by symbols, since the library has no
// version function of its own.
func checkABI(lib uintptr) error {
	has := func(name string) bool {
		_, err := purego.Dlsym(lib, name)
		return err == nil
	}
	if has("mlx_compile_cache_new") && has("mlx_cumsum_axis") {
		return nil
	}
	found := "0.5 or older"
	switch {
	case !has("mlx_add"):
		return fmt.Errorf("%w: it is not mlx-c at all (no function mlx_add)", ErrABI)
	case has("mlx_distributed_group_new"):
		found = "0.6 (a later build)"
	case has("mlx_hanning"):
		found = "0.6"
	}
	return fmt.Errorf("%w: mlx-c %s is needed, this is %s", ErrABI, ABI, found)
}

// Callback makes a C function pointer of fn. It is never freed, so make each
// once.
func Callback(fn any) uintptr { return purego.NewCallback(fn) }
