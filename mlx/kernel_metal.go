package mlx

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A metalRunner runs kernels on Metal. MLX writes the function's signature and compiles it once per
// process. Numbers come in two more arrays, since Metal's functions have no others as parameters.
type metalRunner struct {
	functions map[string]uintptr // MLX's functions by variants of kernels
}

func (r *metalRunner) run(k *kernel, l launch) []*Array {
	ints, floats := l.numbers()
	handle := r.function(k, l)
	config := mlxc.FastMetalKernelConfigNew()
	defer mlxc.FastMetalKernelConfigFree(config)
	for _, o := range l.outputs {
		dims, n := cInts(o.shape)
		check(mlxc.FastMetalKernelConfigAddOutputArg(config, dims, n, int32(o.dtype)))
	}
	check(mlxc.FastMetalKernelConfigSetGrid(config, int32(l.blocks*l.threads), 1, 1))
	check(mlxc.FastMetalKernelConfigSetThreadGroup(config, int32(l.threads), 1, 1))
	l.inputs = append(l.inputs[:len(l.inputs):len(l.inputs)], input{"ints", FromInt32(ints)}, input{"floats", FromFloat32(floats)})
	in := l.handles()
	defer mlxc.VectorArrayFree(in)
	out := mlxc.VectorArrayNew()
	defer func() { mlxc.VectorArrayFree(out) }()
	check(mlxc.FastMetalKernelApply(&out, handle, in, config, stream))
	return unpack(out)
}

// function returns MLX's function for a launch.
func (r *metalRunner) function(k *kernel, l launch) uintptr {
	key := l.variant(k)
	if handle := r.functions[key]; handle != 0 {
		return handle
	}
	header, body := k.source(l, "metal")
	inputs, outputs := mlxc.VectorStringNew(), mlxc.VectorStringNew()
	defer mlxc.VectorStringFree(inputs)
	defer mlxc.VectorStringFree(outputs)
	for _, in := range l.inputs {
		check(mlxc.VectorStringAppendValue(inputs, in.name))
	}
	check(mlxc.VectorStringAppendValue(inputs, "ints"))
	check(mlxc.VectorStringAppendValue(inputs, "floats"))
	for _, out := range l.outputs {
		check(mlxc.VectorStringAppendValue(outputs, out.name))
	}
	name := fmt.Sprintf("gomflux_%s_%d", k.name, len(r.functions)) // MLX's cache goes by the name
	handle := mlxc.FastMetalKernelNew(name, inputs, outputs, metalBody(l, body), header, true, false)
	if r.functions == nil {
		r.functions = map[string]uintptr{}
	}
	r.functions[key] = handle
	return handle
}

// metalBody is the body of the function, which begins with the numbers.
func metalBody(l launch, body string) string {
	var b strings.Builder
	b.WriteString("const int block = threadgroup_position_in_grid.x, tid = thread_position_in_threadgroup.x,\n" +
		"    threads = threads_per_threadgroup.x;\n")
	for i, p := range l.ints {
		fmt.Fprintf(&b, "const int %s = ints[%d];\n", p.name, i)
	}
	for i, p := range l.floats {
		fmt.Fprintf(&b, "const float %s = floats[%d];\n", p.name, i)
	}
	return b.String() + body
}
