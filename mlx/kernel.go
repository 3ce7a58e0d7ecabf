package mlx

import (
	"embed"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// kernelFiles has the kernels' functions, in the language that CUDA C++ and Metal share, and the
// headers by which the two differ.
//
//go:embed kernels
var kernelFiles embed.FS

// EnvKernels is the environment variable that, set to 0, turns custom kernels off.
const EnvKernels = "GOMFLUX_KERNELS"

// A kernel is a function for GPUs that does the work of several operations of MLX, of which each
// would read and write all its elements. It has one source for CUDA and Metal, and a graph of MLX's
// operations that computes the same, for the CPU and for GPUs where the kernel does not work.
type kernel struct {
	name string
	// check computes something small with the kernel and with the graph.
	check func() (found, expected []*Array)

	checked bool
	failed  error // why the kernel is not used
	off     bool  // turned off by TurnOff
}

// A kernelRunner runs kernels on a backend.
type kernelRunner interface {
	run(k *kernel, l launch) []*Array
}

// kernelRunners are the backends' runners. A test has its own.
var kernelRunners = map[Backend]kernelRunner{BackendCUDA: &cudaRunner{}, BackendMetal: &metalRunner{}}

// A launch is a call of a kernel.
type launch struct {
	constants []constant // compiled into the kernel
	inputs    []input
	outputs   []output
	ints      []parameter[int]
	floats    []parameter[float32]
	blocks    int
	threads   int // of a block
}

// A constant is a macro in a kernel's source.
type constant struct {
	name  string
	value any // an int, a bool, a Dtype or an activation
}

// An input is an array that a kernel reads. It is made contiguous if it is not.
type input struct {
	name  string
	array *Array
}

// An output is an array that a kernel makes.
type output struct {
	name  string
	dtype Dtype
	shape []int
}

// A parameter is a number that a kernel takes.
type parameter[T any] struct {
	name  string
	value T
}

// A KernelStatus describes a custom kernel on this machine.
type KernelStatus struct {
	Name string
	// Err is why the kernel is not used, nil if it is.
	Err error
}

var errTurnedOff = errors.New("MLX's operations are faster here, as gomflux bench --tune measured")

var errKernelDiffers = errors.New("its results differ from those of MLX's operations")

// Kernels checks all custom kernels on the GPU and returns their states. The reason why there are
// none, such as a machine without a GPU, is an error.
func Kernels() ([]KernelStatus, error) {
	if err := kernelsUnavailable(); err != nil {
		return nil, err
	}
	on := device
	defer setDevice(on)
	setDevice(GPU)
	CheckKernels()
	states := make([]KernelStatus, len(kernels))
	for i, k := range kernels {
		states[i] = KernelStatus{k.name, k.failed}
		if k.failed == nil && k.off {
			states[i].Err = errTurnedOff
		}
	}
	return states, nil
}

// OnKernelFailure, if set, is called on the MLX thread when a kernel that failed is first asked for.
var OnKernelFailure func(KernelStatus)

// kernelsOff reports whether custom kernels are turned off. Every launch asks.
var kernelsOff = sync.OnceValue(func() bool { return os.Getenv(EnvKernels) == "0" })

// kernelsUnavailable returns why there are no custom kernels, nil if there are.
func kernelsUnavailable() error {
	switch {
	case kernelsOff():
		return fmt.Errorf("turned off by %s=0", EnvKernels)
	case kernelRunners[BackendCPU] != nil: // in a test
		return nil
	case !gpuAvailable:
		return errors.New("there is no GPU")
	case GPU.Backend() == BackendCUDA && mlxc.CUDAKernel == nil:
		return errors.New("this libmlxc cannot run them; the one of make setup can")
	}
	return nil
}

// fewest is the number of elements from which MLX passes an array in Metal's device memory, where the
// kernels expect it, and not in constant memory.
const fewest = 8

// usable reports whether the kernel can compute with these arrays on the running job's device. All
// must have the same dtype.
func (k *kernel) usable(arrays ...*Array) bool {
	if k.off || kernelRunners[device.Backend()] == nil || kernelsUnavailable() != nil {
		return false
	}
	for _, a := range arrays {
		if d := a.Dtype(); d != arrays[0].Dtype() || d != BFloat16 && d != Float16 && d != Float32 || a.Size() < fewest {
			return false
		}
	}
	if !k.checked {
		if thread.tracing > 0 {
			return false // nothing can be evaluated: see CheckKernels
		}
		k.verify()
	}
	return k.failed == nil
}

// CheckKernels checks the kernels that have not been used yet on the running job's device, and
// reports whether all of them work there. Call it before [Compile], since kernels that are not
// checked are not used in functions that are traced.
func CheckKernels() (all bool) {
	if kernelRunners[device.Backend()] == nil || kernelsUnavailable() != nil {
		return false
	}
	all = true
	for _, k := range kernels {
		k.verify()
		all = all && k.failed == nil
	}
	return all
}

// verify compares the kernel with its graph once.
func (k *kernel) verify() {
	if k.checked {
		return
	}
	k.checked = true // check uses the kernel
	off := k.off
	k.off = false
	k.failed = k.compare()
	k.off = off
	if k.failed != nil && OnKernelFailure != nil {
		OnKernelFailure(KernelStatus{k.name, k.failed})
	}
}

func (k *kernel) compare() (err error) {
	defer catch(&err)
	WithScope(func() {
		found, expected := k.check()
		for i := range expected {
			f, e := found[i].Floats(), expected[i].Floats()
			most, largest := 0.0, 0.0
			for j := range e {
				d := math.Abs(float64(f[j]) - float64(e[j]))
				if !(d <= most) { // also if it is NaN
					most = d
				}
				largest = max(largest, math.Abs(float64(e[j])))
			}
			if !slices.Equal(found[i].Shape(), expected[i].Shape()) || !(most <= 1e-5*largest) {
				err = fmt.Errorf("%w: by %.2g of %.2g", errKernelDiffers, most, largest)
			}
		}
	})
	return err
}

// apply runs the kernel.
func (k *kernel) apply(l launch) []*Array { return kernelRunners[device.Backend()].run(k, l) }

// variant identifies the code of a launch: its constants, and the names of its arrays.
func (l *launch) variant(k *kernel) string {
	b := append(make([]byte, 0, 256), k.name...) // at every launch, so without package fmt
	for _, c := range l.constants {
		b = append(b, ' ')
		switch v := c.value.(type) {
		case int:
			b = strconv.AppendInt(b, int64(v), 10)
		case bool:
			b = strconv.AppendBool(b, v)
		case Dtype:
			b = append(b, v.String()...)
		case activation:
			b = append(b, v...)
		}
	}
	for _, in := range l.inputs {
		b = append(append(append(b, ' '), in.name...), ':')
		b = strconv.AppendInt(b, int64(in.array.Dtype()), 10)
	}
	return string(b)
}

// source is the text of a kernel's file, and that of the headers for a backend with the constants
// of a launch.
func (k *kernel) source(l launch, backend string) (header, body string) {
	var b strings.Builder
	for _, name := range []string{backend, "common"} {
		b.WriteString(kernelFile(name + ".h"))
	}
	for _, c := range l.constants {
		switch v := c.value.(type) {
		case Dtype:
			fmt.Fprintf(&b, "#define %s %s\n", c.name, kernelType(v))
		case bool:
			n := 0
			if v {
				n = 1
			}
			fmt.Fprintf(&b, "#define %s %d\n", c.name, n)
		default:
			fmt.Fprintf(&b, "#define %s %v\n", c.name, v)
		}
	}
	return b.String(), kernelFile(k.name + ".cpp")
}

func kernelFile(name string) string {
	text, err := kernelFiles.ReadFile("kernels/" + name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// kernelType is the name of a dtype in a kernel's source.
func kernelType(d Dtype) string {
	switch d {
	case Float32:
		return "float"
	case Int32:
		return "int"
	case Uint32:
		return "unsigned int"
	}
	return d.String() // bfloat16 and float16, which the headers define
}

// numbers returns the values of ints and floats, each followed by a zero, so that it has an address.
func (l *launch) numbers() (ints []int32, floats []float32) {
	ints, floats = make([]int32, len(l.ints)+1), make([]float32, len(l.floats)+1)
	for i, p := range l.ints {
		ints[i] = int32(p.value)
	}
	for i, p := range l.floats {
		floats[i] = p.value
	}
	return ints, floats
}

func (l *launch) handles() uintptr {
	arrays := make([]*Array, len(l.inputs))
	for i, in := range l.inputs {
		arrays[i] = in.array
	}
	return newVector(arrays)
}
