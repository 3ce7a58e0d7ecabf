package mlxc

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// CUDAKernel runs a compiled CUDA kernel. It is a function that set-up adds to libmlxc on Linux
// (scripts/setup/mlxc/cuda_kernel.h), nil where the library lacks it.
var CUDAKernel func(res *uintptr, name string, code unsafe.Pointer, codeSize uintptr, inputs uintptr, layout *int32, outputs uintptr,
	ints *int32, nInts uintptr, floats *float32, nFloats uintptr, grid *int32, threads int32, stream uintptr) int32

// openCUDAKernel binds CUDAKernel if the library has it.
func openCUDAKernel(lib uintptr) {
	if addr, err := purego.Dlsym(lib, "gomflux_cuda_kernel"); err == nil {
		purego.RegisterFunc(&CUDAKernel, addr)
	}
}

// nvrtc has the functions of NVIDIA's run-time compiler, which libmlx's CUDA build needs and has
// opened.
var nvrtc struct {
	opened         bool
	err            error
	CreateProgram  func(program *uintptr, source, name string, headers int32, contents, names uintptr) int32
	DestroyProgram func(program *uintptr) int32
	CompileProgram func(program uintptr, options int32, list unsafe.Pointer) int32
	GetCUBINSize   func(program uintptr, size *uintptr) int32
	GetCUBIN       func(program uintptr, code unsafe.Pointer) int32
	GetLogSize     func(program uintptr, size *uintptr) int32
	GetLog         func(program uintptr, log unsafe.Pointer) int32
	GetErrorString func(code int32) string
	Version        func(major, minor *int32) int32
}

func openNVRTC() error {
	if nvrtc.opened {
		return nvrtc.err
	}
	nvrtc.opened = true
	for _, f := range []function{
		{"nvrtcCreateProgram", &nvrtc.CreateProgram}, {"nvrtcDestroyProgram", &nvrtc.DestroyProgram},
		{"nvrtcCompileProgram", &nvrtc.CompileProgram}, {"nvrtcGetCUBINSize", &nvrtc.GetCUBINSize},
		{"nvrtcGetCUBIN", &nvrtc.GetCUBIN}, {"nvrtcGetProgramLogSize", &nvrtc.GetLogSize},
		{"nvrtcGetProgramLog", &nvrtc.GetLog}, {"nvrtcGetErrorString", &nvrtc.GetErrorString},
		{"nvrtcVersion", &nvrtc.Version},
	} {
		addr, err := purego.Dlsym(purego.RTLD_DEFAULT, f.name)
		if err != nil {
			nvrtc.err = fmt.Errorf("NVIDIA's run-time compiler has no function %s: %w", f.name, err)
			return nvrtc.err
		}
		purego.RegisterFunc(f.fn, addr)
	}
	return nil
}

// CUDACompiler names the version of the compiler, "" without one.
func CUDACompiler() string {
	var major, minor int32
	if openNVRTC() != nil || nvrtc.Version(&major, &minor) != 0 {
		return ""
	}
	return fmt.Sprintf("NVRTC %d.%d", major, minor)
}

// stringHash is the seed of C++'s std::hash<std::string> in libstdc++, which computes it by std::_Hash_bytes.
const stringHash = 0xc70f6907

// CUDAModule returns the name that MLX gives to the code of a custom kernel (CustomKernel::eval_gpu). With the extension
// .ptx it is that of the file in MLX's cache. It is "" if libmlx was built with another C++ library.
func CUDAModule(name string, code []byte) string {
	addr, err := purego.Dlsym(purego.RTLD_DEFAULT, "_ZSt11_Hash_bytesPKvmm")
	if err != nil {
		return ""
	}
	hash, _, _ := purego.SyscallN(addr, uintptr(unsafe.Pointer(unsafe.SliceData(code))), uintptr(len(code)), stringHash)
	return fmt.Sprintf("%s_%x", name, hash)
}

// CompileCUDA compiles CUDA C++ for an architecture such as sm_90, and returns the code of a cubin.
func CompileCUDA(name, source, architecture string) ([]byte, error) {
	if err := openNVRTC(); err != nil {
		return nil, err
	}
	var program uintptr
	if rc := nvrtc.CreateProgram(&program, source, name+".cu", 0, 0, 0); rc != 0 {
		return nil, errors.New(nvrtc.GetErrorString(rc))
	}
	defer nvrtc.DestroyProgram(&program)
	option := []byte("--gpu-architecture=" + architecture + "\x00")
	list := []*byte{&option[0]}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&option[0])
	if rc := nvrtc.CompileProgram(program, int32(len(list)), unsafe.Pointer(&list[0])); rc != 0 {
		return nil, fmt.Errorf("%s: %s", nvrtc.GetErrorString(rc), compilerLog(program))
	}
	var size uintptr
	if rc := nvrtc.GetCUBINSize(program, &size); rc != 0 || size == 0 {
		return nil, fmt.Errorf("no code for %s: %s", architecture, nvrtc.GetErrorString(rc))
	}
	code := make([]byte, size)
	if rc := nvrtc.GetCUBIN(program, unsafe.Pointer(&code[0])); rc != 0 {
		return nil, errors.New(nvrtc.GetErrorString(rc))
	}
	return code, nil
}

// compilerLog returns the first error of a program that did not compile.
func compilerLog(program uintptr) string {
	var size uintptr
	if nvrtc.GetLogSize(program, &size) != 0 || size == 0 {
		return ""
	}
	log := make([]byte, size)
	nvrtc.GetLog(program, unsafe.Pointer(&log[0]))
	text := strings.TrimRight(string(log), "\x00\n")
	for line := range strings.Lines(text) {
		if strings.Contains(line, "error") {
			return strings.TrimSpace(line)
		}
	}
	return text
}
