package mlx

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A metalFunction is what MLX passes to Metal for a launch.
type metalFunction struct {
	recorded
	text        string // our header and body with MLX's signature between
	grid, group [3]int32
	mathMode    int32
}

// someGPU is an mlx::core::Stream on a GPU, which need not exist.
var someGPU = [3]int32{-1, 1, 0}

// exportMetal has MLX write the function of a launch. It does so when a graph with the kernel is exported
// to a file, which needs no Metal, and the kernel's state is in the file.
func exportMetal(t *testing.T, runner *metalRunner, r recorded) metalFunction {
	t.Helper()
	var export func(file string, closure, args uintptr, shapeless bool) int32
	purego.RegisterLibFunc(&export, purego.RTLD_DEFAULT, "mlx_export_function")
	if compiled.callback == 0 {
		compiled.callback = mlxc.Callback(trace)
	}
	compiled.functions = append(compiled.functions, func(in []*Array) []*Array {
		defer func(on uintptr) { stream = on }(stream)
		stream = uintptr(unsafe.Pointer(&someGPU))
		l := r.launch
		l.inputs = slices.Clone(l.inputs)
		for i := range in {
			l.inputs[i].array = in[i]
		}
		return runner.run(r.kernel, l)
	})
	closure := mlxc.ClosureNewFuncPayload(compiled.callback, uintptr(len(compiled.functions)), 0)
	defer mlxc.ClosureFree(closure)
	args := r.launch.handles()
	defer mlxc.VectorArrayFree(args)
	file := filepath.Join(t.TempDir(), "kernel.mlxfn")
	check(export(file, closure, args, false))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, []byte(kernelFile("metal.h")))
	if at < 8 {
		t.Fatalf("%s: MLX exported no source", r.kernel.name)
	}
	f := metalFunction{recorded: r}
	state := bytes.NewReader(data[at-8:]) // in the order of mlx::core::fast::CustomKernel::state
	read := func(p any) { must(binary.Read(state, binary.LittleEndian, p)) }
	var size, shapes uint64
	read(&size)
	text := make([]byte, size)
	read(text)
	f.text = string(text)
	read(&f.grid)
	read(&f.group)
	read(&shapes)
	var rest struct {
		Contiguous, InitValue bool
		Scalars               uint64
		Precompiled           bool
		Shared                int32
	}
	read(make([]byte, 3*shapes))
	read(&rest)
	read(&f.mathMode)
	if !rest.Contiguous || rest.InitValue || rest.Scalars != 0 || rest.Precompiled || rest.Shared != 0 {
		t.Fatalf("%s: MLX exported %+v", r.kernel.name, rest)
	}
	return f
}

// metalHeader is the text that all functions begin with.
func metalHeader() string { return kernelFile("metal.h") + kernelFile("common.h") }

// sharedArray finds the names of arrays in threadgroup memory.
var sharedArray = regexp.MustCompile(`(?m)^\s*(?:SHARED\(\w+,\s*|threadgroup \w+ )(\w+)`)

// clangText returns the text of functions for clang, where header replaces that of all functions.
func clangText(header string, functions ...metalFunction) string {
	var b strings.Builder
	b.WriteString("#include \"mlx/backend/metal/kernels/bf16.h\"\ntypedef half float16_t; // as in MLX's utils.h\n" + header)
	for _, f := range functions {
		text := strings.TrimPrefix(f.text, metalHeader())
		text = strings.Replace(text, "[[kernel]] void", "kernel void", 1)
		bytes := "0"
		for _, a := range sharedArray.FindAllStringSubmatch(text, -1) {
			bytes += " + sizeof(" + a[1] + ")"
		}
		end := strings.LastIndex(text, "}")
		fmt.Fprintf(&b, "%sstatic_assert(%s <= 32768, \"too much threadgroup memory\");\n}\n", text[:end], bytes)
		for _, c := range f.launch.constants {
			fmt.Fprintf(&b, "#undef %s\n", c.name)
		}
	}
	return b.String()
}

// noAddressSpace finds pointers for which no address space is given, in clang's syntax tree.
var noAddressSpace = regexp.MustCompile(`(?m)^.*\b(?:Var|ParmVar|Field)Decl\b.*'[^']*__generic [^']*\*.*$`)

// A clang is a compiler that reads Metal's language as C++ for OpenCL, which has its address spaces and most
// of its restrictions: testdata/metal/metal_stdlib gives them Metal's names.
type clang struct{ path, include string }

func findClang(t *testing.T) clang {
	t.Helper()
	if runtime.GOOS == "darwin" {
		t.Skip("on a Mac TestKernels compiles them for Metal")
	}
	path, err := exec.LookPath(cmp.Or(os.Getenv("GOMFLUX_CLANG"), "clang"))
	if err != nil {
		skipUnlessRequired(t, "%v (apt-get install clang, or GOMFLUX_CLANG)", err)
	}
	library, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	include := filepath.Join(filepath.Dir(library.MLX), "../include")
	if _, err := os.Stat(include); err != nil {
		skipUnlessRequired(t, "MLX's headers are not next to its library: %v", err)
	}
	return clang{path, include}
}

// compile checks text as the version of Metal on macOS 14 does, which is C++14 without double, where every
// pointer has an address space. It compiles text to an object file for this machine unless object is empty.
func (c clang) compile(t *testing.T, text, object string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kernels.clcpp")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	args := []string{"-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-target", machine + "-unknown-linux-gnu", "-Werror", "-Wall",
		"-Wno-unused-variable", "-Wno-unknown-attributes", "-Wc++98-c++11-c++14-compat", "-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64",
		"-I", "testdata/metal", "-I", c.include, file}
	compiler := exec.Command(c.path, append(args, "-fsyntax-only", "-Xclang", "-ast-dump", "-fno-color-diagnostics")...)
	if object != "" {
		compiler = exec.Command(c.path, append(args, "-O0", "-fPIC", "-c", "-o", object)...)
	}
	var tree, problems bytes.Buffer
	compiler.Stdout, compiler.Stderr = &tree, &problems
	if err := compiler.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, problems.String())
	}
	if found := noAddressSpace.Find(tree.Bytes()); found != nil {
		return fmt.Errorf("a pointer without an address space: %s", found)
	}
	return nil
}

// exportAll has MLX write all variants of the kernels.
func exportAll(t *testing.T) (functions []metalFunction) {
	t.Helper()
	runner := &metalRunner{}
	record(t, kernelCases(), kernelDtypes, func(r recorded) {
		f := exportMetal(t, runner, r)
		blocks, threads := int32(r.launch.blocks), int32(r.launch.threads)
		if f.grid != [3]int32{blocks * threads, 1, 1} || f.group != [3]int32{threads, 1, 1} || f.mathMode != 0 {
			t.Errorf("%s: grid %d, threadgroup %d, math mode %d for %d blocks of %d threads", r.variant, f.grid, f.group, f.mathMode,
				blocks, threads)
		}
		functions = append(functions, f)
	})
	return functions
}

// buildMetal compiles functions for this machine, and a program that calls them as Metal would: the
// buffers in their order, followed by the attributes in the signature.
func buildMetal(t *testing.T, compiler clang, functions []metalFunction) *hostProgram {
	t.Helper()
	object := filepath.Join(t.TempDir(), "metal.o")
	if err := compiler.compile(t, clangText(metalHeader(), functions...), object); err != nil {
		t.Fatal(err)
	}
	shim, err := os.ReadFile("testdata/metal.h")
	if err != nil {
		t.Fatal(err)
	}
	var calls strings.Builder
	source, variants := hostRuntime(t)+string(shim), map[string]int{}
	for n, f := range functions {
		name := regexp.MustCompile(`kernel\]\] void (\w+)`).FindStringSubmatch(f.text)[1]
		var args []string
		for i := range f.launch.inputs {
			args = append(args, fmt.Sprintf("buffers[%d]", i))
		}
		args = append(args, "ints", "floats")
		for i := range f.launch.outputs {
			args = append(args, fmt.Sprintf("buffers[%d]", len(f.launch.inputs)+i))
		}
		parameters := strings.Repeat("const void*, ", len(args)) + "uint3, uint3, uint3"
		for _, a := range regexp.MustCompile(`uint3 \w+ \[\[(\w+)\]\]`).FindAllStringSubmatch(f.text, -1) {
			args = append(args, map[string]string{"thread_position_in_threadgroup": "position(tid)",
				"threadgroup_position_in_grid": "position(block)", "threads_per_threadgroup": "position(threads)"}[a[1]])
		}
		source += fmt.Sprintf("extern \"C\" void %s(%s);\n", name, parameters)
		fmt.Fprintf(&calls, "case %d: return %s(%s);\n", n, name, strings.Join(args, ", "))
		variants[f.variant] = n
	}
	return buildProgram(t, source, calls.String(), variants, object)
}

// TestMetalOnHost runs what MLX passes to Metal on the CPU, compiled by clang, like TestKernelsOnHost but
// without sanitizers.
func TestMetalOnHost(t *testing.T) {
	compiler, functions := findClang(t), exportAll(t)
	buildMetal(t, compiler, functions).run(t, kernelCases(), 1)

	var faulty []metalFunction
	for _, f := range functions {
		if f.kernel == biasSumKernel {
			f.text = strings.ReplaceAll(f.text, "threadgroup_position_in_grid.x", "threadgroup_position_in_grid.y")
			faulty = append(faulty, f)
		}
	}
	var found error
	p := buildMetal(t, compiler, faulty)
	withRunner(t, startHost(t, p, "", 1), func() { found = runCase(caseNamed(t, kernelCases(), "bias_sum {257")[0], Float16) })
	if !errors.Is(found, errKernelDiffers) {
		t.Errorf("planted fault, the wrong coordinate: found %v", found)
	}
}

// TestMetalSource compiles every variant of the kernels as MLX passes it to Metal, and planted faults.
func TestMetalSource(t *testing.T) {
	compiler := findClang(t)
	functions := exportAll(t)
	header := metalHeader()
	if err := compiler.compile(t, clangText(header, functions...), ""); err != nil {
		t.Fatal(err)
	}
	for _, f := range metalFaults {
		i := slices.IndexFunc(functions, func(m metalFunction) bool {
			dtype := f.dtype == 0 || strings.Contains(m.text, "#define T "+kernelType(f.dtype)+"\n")
			return m.kernel.name == f.in && dtype && strings.Contains(m.text, f.old)
		})
		if i < 0 {
			t.Errorf("%s: %q is in no variant of %s", f.name, f.old, f.in)
			continue
		}
		change := func(text string) string { return strings.Replace(text, f.old, f.new, 1) }
		faulty := functions[i]
		faulty.text = change(strings.TrimPrefix(faulty.text, header))
		err := compiler.compile(t, clangText(change(header), faulty), "")
		if err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("planted fault, %s: found %v, expected %q", f.name, err, f.want)
		}
	}
}

// TestFewElements expects MLX's operations instead of a kernel for arrays that MLX would pass to Metal in
// constant memory, such as the bias of four channels, and kernels from eight elements on.
func TestFewElements(t *testing.T) {
	for _, c := range []struct {
		elements, launches int
	}{{4, 0}, {8, 4}} {
		few := kernelCase{"few elements", func(in *inputs) (found, expected []*Array) {
			x, bias := in.normal(2, 3, c.elements), in.normal(c.elements)
			return []*Array{AddBias(x, bias, nil), GatedSum(x, bias.Reshape(1, 1, c.elements), x), Norm{Weight: bias, Eps: 1e-6}.Apply(x),
				SwiGLU(nil, AllColumns(bias.Reshape(1, 1, c.elements)), AllColumns(bias.Reshape(1, 1, c.elements)))}, nil
		}}
		launches := 0
		record(t, []kernelCase{few}, kernelDtypes[:1], func(recorded) { launches++ })
		if launches != c.launches {
			t.Errorf("%d elements: %d kernels ran, expected %d", c.elements, launches, c.launches)
		}
	}
}

// metalFaults are mistakes that Metal's compiler finds and those for CUDA and the CPU do not.
var metalFaults = []struct {
	name, in string
	dtype    Dtype // of the variant, any if it is 0
	old, new string
	want     string
}{
	{"device memory as a thread's", "norm_rope", Float32, "const GLOBAL T* x = image", "const thread T* x = image",
		"cannot initialize a variable"},
	{"no address space", "group_factors", 0, "const GLOBAL float* in", "const float* in", "without an address space"},
	{"no address space of a parameter", "gated_sum", Float32, "load(const GLOBAL E* x)", "load(const E* x)", "no viable conversion"},
	{"threadgroup memory as device memory", "modulated_norm", Float32, "LOCAL(float) partial", "GLOBAL float* partial",
		"no matching function"},
	{"too much threadgroup memory", "group_statistics", Float16, "means, 256", "means, 1024", "too much threadgroup memory"},
	{"an attribute that MLX does not write", "gated_sum", Float32, "threads_per_threadgroup.x", "threads_per_block.x",
		"undeclared identifier"},
	{"an attribute is missing", "gated_sum", Float32, "uint3 threads_per_threadgroup [[threads_per_threadgroup]]", "uint3 other",
		"undeclared identifier"},
	{"an ambiguous call", "modulated_norm", Float16, "RSQRT(sum + eps)", "RSQRT(max(sum, T(eps)))", "call to 'max' is ambiguous"},
	{"float to bfloat", "gated_sum", BFloat16, "T(float(p.e[i]) +", "(float(p.e[i]) +", "no viable"},
	{"constant memory as device memory", "bias_sum", Float32, "const device float* bias", "const constant float* bias",
		"no matching function"},
	{"double", "modulated_norm", Float32, "float mean = 0", "double mean = 0", "cl_khr_fp64"},
	{"C++17", "modulated_norm", Float32, "if (CENTER)", "if constexpr (CENTER)", "C++17"},
	{"threadgroup memory in a function", "modulated_norm", Float32, "  x = warp_sum(x);", "  SHARED(float, own, 1); x = warp_sum(x);",
		"local address space"},
}
