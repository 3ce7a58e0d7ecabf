package mlx

import (
	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Compiled is a function whose graph MLX has traced and fused. The trace is
// made at the first Call and again for every new set of input shapes and
// dtypes.
type Compiled struct {
	closure uintptr
}

var compiled struct {
	callback  uintptr
	functions []func(in []*Array) []*Array
	panic     any // what a traced function panicked with
}

// Compile prepares f. f must compute its results from its inputs and from
// arrays that never change, must not read elements, and is run only to be
// traced.
func Compile(f func(in []*Array) []*Array) *Compiled {
	if compiled.callback == 0 {
		compiled.callback = mlxc.Callback(trace)
	}
	compiled.functions = append(compiled.functions, f)
	id := len(compiled.functions) // 1-based: a payload of 0 reads as none
	plain := mlxc.ClosureNewFuncPayload(compiled.callback, uintptr(id), 0)
	defer mlxc.ClosureFree(plain)
	c := &Compiled{closure: mlxc.ClosureNew()}
	check(mlxc.Compile(&c.closure, plain, false))
	return c
}

// Call runs the function.
func (c *Compiled) Call(in ...*Array) []*Array {
	v := newVector(in)
	defer mlxc.VectorArrayFree(v)
	out := mlxc.VectorArrayNew()
	if rc := mlxc.ClosureApply(&out, c.closure, v); rc != 0 {
		mlxc.VectorArrayFree(out)
		if p := compiled.panic; p != nil {
			compiled.panic = nil
			takeMessage()
			panic(p)
		}
		check(rc)
	}
	return unpack(out)
}

// trace is called by MLX, inside ClosureApply. A panic must not cross C++, so
// it is put aside and raised again by Call.
func trace(res *uintptr, in uintptr, id uintptr) (rc uintptr) {
	outer := scopes
	thread.tracing++
	defer func() {
		thread.tracing--
		if p := recover(); p != nil {
			unwind(outer)
			compiled.panic = p
			rc = 1
		}
	}()
	pushScope()
	var inputs []*Array
	for i := range int(mlxc.VectorArraySize(in)) {
		var h uintptr
		check(mlxc.VectorArrayGet(&h, in, uintptr(i)))
		inputs = append(inputs, wrap(h))
	}
	v := newVector(compiled.functions[id-1](inputs))
	check(mlxc.VectorArraySet(res, v))
	mlxc.VectorArrayFree(v)
	popScope()
	return 0
}
