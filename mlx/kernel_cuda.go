package mlx

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// envCode is MLX's environment variable for the folder where it keeps compiled CUDA code.
const envCode = "MLX_PTX_CACHE_DIR"

// keepCode has MLX keep compiled code in the user's cache folder, if that can be written. MLX's own folder is in /tmp, where
// others can write and nothing stays. MLX asks for the variable when it first compiles something.
func keepCode() {
	dir, err := os.UserCacheDir()
	if _, set := os.LookupEnv(envCode); set || err != nil {
		return
	}
	if dir = filepath.Join(dir, "gomflux", "cuda"); os.MkdirAll(dir, 0o700) == nil {
		os.Setenv(envCode, dir)
	}
}

// A cudaRunner runs kernels on CUDA.
//
// mlx_fast_cuda_kernel is not used: it compiles every kernel with the headers of the CUDA toolkit,
// which takes more than a second, and does so again in every process.
type cudaRunner struct {
	code map[string][]byte // what MLX gets as the code of variants of kernels
}

func (r *cudaRunner) run(k *kernel, l launch) []*Array {
	code := r.compiled(k, l)
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

// compiled returns the code of a launch, or the text that stands for it.
func (r *cudaRunner) compiled(k *kernel, l launch) []byte {
	key := l.variant(k)
	code := r.code[key]
	if code == nil {
		source, architecture := k.cudaSource(l), describe(GPU).Architecture
		var err error
		code, err = storedCode(os.Getenv(envCode), k.name, mlxc.CUDACompiler()+architecture+source, func() ([]byte, error) {
			return mlxc.CompileCUDA(k.name, source, architecture)
		})
		if err != nil {
			raise("cannot compile the kernel %s: %v", k.name, err)
		}
		if r.code == nil {
			r.code = map[string][]byte{}
		}
		r.code[key] = code
	}
	return code
}

// storedCode returns a short text that stands for a kernel's code, which key determines: MLX looks for the code in a
// file of its cache, the folder, by a hash of what it gets as the code. So it need not hash all of it at each launch,
// and the next process need not compile it. Without such a folder the code itself is returned.
func storedCode(folder, name, key string, compile func() ([]byte, error)) ([]byte, error) {
	text := fmt.Appendf(nil, "%x", sha256.Sum256([]byte(key)))
	module := mlxc.CUDAModule(name, text)
	if folder == "" || module == "" {
		return compile()
	}
	path := filepath.Join(folder, module+".ptx")
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		return text, nil
	}
	code, err := compile()
	if err != nil || os.MkdirAll(folder, 0o700) != nil {
		return code, err
	}
	functions := name + "\t" + name + "\n" // names in the source and in the code
	for _, f := range []struct {
		path    string
		content []byte
	}{{filepath.Join(folder, module+".txt"), []byte(functions)}, {path, code}} {
		if atomicfile.ReplacePrivate(f.path, func(w io.Writer) error { _, err := w.Write(f.content); return err }) != nil {
			return code, nil
		}
	}
	return text, nil
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
