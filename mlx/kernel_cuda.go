package mlx

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A cudaRunner runs kernels on CUDA.
//
// mlx_fast_cuda_kernel is not used: it compiles every kernel with the headers of the CUDA toolkit,
// which takes more than a second, and does so again in every process.
type cudaRunner struct {
	code map[string][]byte // cubins by variants of kernels
}

func (r *cudaRunner) run(k *kernel, l launch) []*Array {
	code := r.cubin(k, l)
	var layout []int32
	for _, o := range l.outputs {
		layout = append(layout, int32(o.dtype), int32(len(o.shape)))
		for _, n := range o.shape {
			layout = append(layout, int32(n))
		}
	}
	ints, floats := l.numbers()
	in := l.handles()
	defer mlxc.VectorArrayFree(in)
	out := mlxc.VectorArrayNew()
	defer func() { mlxc.VectorArrayFree(out) }()
	grid := [3]int32{int32(l.blocks), 1, 1}
	check(mlxc.CUDAKernel(&out, k.name, unsafe.Pointer(unsafe.SliceData(code)), uintptr(len(code)), in, &layout[0],
		uintptr(len(l.outputs)), &ints[0], uintptr(len(l.ints)), &floats[0], uintptr(len(l.floats)), &grid[0], int32(l.threads), stream))
	return unpack(out)
}

// cubin returns the compiled code of a launch.
func (r *cudaRunner) cubin(k *kernel, l launch) []byte {
	key := l.variant(k)
	code := r.code[key]
	if code == nil {
		var err error
		if code, err = mlxc.CompileCUDA(k.name, k.cudaSource(l), describe(GPU).Architecture); err != nil {
			raise("cannot compile the kernel %s: %v", k.name, err)
		}
		if r.code == nil {
			r.code = map[string][]byte{}
		}
		r.code[key] = code
	}
	return code
}

// cudaSource is the source of a whole function.
func (k *kernel) cudaSource(l launch) string {
	header, body := k.source(l, "cuda")
	var params []string
	for _, in := range l.inputs {
		params = append(params, fmt.Sprintf("const %s* __restrict__ %s", kernelType(in.array.Dtype()), in.name))
	}
	for _, out := range l.outputs {
		params = append(params, fmt.Sprintf("%s* __restrict__ %s", kernelType(out.dtype), out.name))
	}
	for _, p := range l.ints {
		params = append(params, "const int "+p.name)
	}
	for _, p := range l.floats {
		params = append(params, "const float "+p.name)
	}
	return fmt.Sprintf("%s\nextern \"C\" __global__ void __launch_bounds__(%d) %s(%s) {\n"+
		"const int block = blockIdx.x, tid = threadIdx.x, threads = blockDim.x;\n%s}\n",
		header, l.threads, k.name, strings.Join(params, ", "), body)
}
