package mlx

import "github.com/gomflux/gomflux/mlx/internal/mlxc"

// compiled belongs to the MLX thread. The functions and their closures live
// until the end of the job that made them.
var compiled struct {
	callback  uintptr
	functions []func(in []*Array) []*Array
	closures  []uintptr
	panic     any // what a traced function panicked with
}

// A CompileMode is what MLX does with the graph of a compiled function, besides keeping it.
type CompileMode int32

// The modes, which are values of mlx_compile_mode.
const (
	// Uncompiled means that a function is called as it is.
	Uncompiled CompileMode = 0
	// Unfused leaves the operations as they are. A call then costs less than one of the function,
	// which makes an array in Go for every operation.
	Unfused CompileMode = 2
	// Fused turns chains of elementwise operations into kernels, which MLX compiles at their first
	// use: on CUDA in three seconds each, on the CPU with a C++ compiler.
	Fused CompileMode = 3
)

// Compile returns f compiled: MLX traces f and fuses its graph. The result can be used
// for the rest of the running job. f must compute its results from its inputs and from
// arrays that never change, and must not read elements: it runs only once, when it is
// traced, and again for every new set of input shapes and dtypes.
func Compile(f func(in []*Array) []*Array) func(in []*Array) []*Array {
	compiled, _ := CompileUntil(Fused, f)
	return compiled
}

// CompileUntil is [Compile] in a mode other than Uncompiled, for a function that can be freed before the job ends. Until
// free is called or the job ends, arrays that f uses besides its inputs stay in memory,
// even if they are freed.
func CompileUntil(mode CompileMode, f func(in []*Array) []*Array) (run func(in []*Array) []*Array, free func()) {
	if compiled.callback == 0 {
		compiled.callback = mlxc.Callback(trace)
	}
	compiled.functions = append(compiled.functions, f)
	id := len(compiled.functions) // from 1, since mlx-c takes 0 for a missing payload
	plain := mlxc.ClosureNewFuncPayload(compiled.callback, uintptr(id), 0)
	defer mlxc.ClosureFree(plain)
	closure := mlxc.ClosureNew()
	check(mlxc.Compile(&closure, plain, false))
	at := len(compiled.closures)
	compiled.closures = append(compiled.closures, closure)
	job, freed := thread.job, false
	run = func(in []*Array) []*Array {
		if thread.job != job || freed {
			raise("compiled function used after the job that made it, or after it was freed")
		}
		if mode != Fused {
			check(mlxc.SetCompileMode(int32(mode))) // for all functions, when they are traced
			defer func() { check(mlxc.SetCompileMode(int32(Fused))) }()
		}
		return apply(closure, in)
	}
	return run, func() {
		if thread.job != job || freed {
			return
		}
		freed = true
		mlxc.ClosureFree(closure)
		compiled.closures[at], compiled.functions[id-1] = 0, nil
	}
}

func freeCompiled() {
	for _, c := range compiled.closures {
		if c != 0 {
			mlxc.ClosureFree(c)
		}
	}
	compiled.closures, compiled.functions = nil, nil
}

func apply(closure uintptr, in []*Array) []*Array {
	v := newVector(in)
	defer mlxc.VectorArrayFree(v)
	out := mlxc.VectorArrayNew()
	defer func() { mlxc.VectorArrayFree(out) }()
	if rc := mlxc.ClosureApply(&out, closure, v); rc != 0 {
		if p := compiled.panic; p != nil {
			compiled.panic = nil
			takeMessage()
			panic(p)
		}
		check(rc)
	}
	return unpack(out)
}

// trace is called by MLX, inside ClosureApply. A panic must not cross C++, so trace
// stores it, and apply raises it again.
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
	v := newVector(compiled.functions[id-1](unpack(in)))
	check(mlxc.VectorArraySet(res, v))
	mlxc.VectorArrayFree(v)
	popScope()
	return 0
}
