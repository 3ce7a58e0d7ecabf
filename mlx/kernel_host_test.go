package mlx

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/randtest"
)

// A hostProgram has kernels compiled for the CPU, with the sanitizers of addresses and of undefined
// behaviour. testdata/host.h runs them.
type hostProgram struct {
	path     string
	variants map[string]int
}

// A plantedFault changes the text of a kernel's file or of common.h, and is found in a case.
type plantedFault struct {
	name, in string
	file     string
	old, new string
	want     string // in the error
}

func (f plantedFault) apply(file, text string) string {
	if file != f.file {
		return text
	}
	if strings.Count(text, f.old) != 1 {
		panic(fmt.Sprintf("%s: %q is not in %s once", f.name, f.old, file))
	}
	return strings.Replace(text, f.old, f.new, 1)
}

// hostSource writes a function for a launch, in a namespace of its own.
func hostSource(b *strings.Builder, namespace string, r recorded, f plantedFault) {
	header, body := r.kernel.source(r.launch, "host")
	common := kernelFile("common.h")
	constants := strings.TrimPrefix(header, kernelFile("host.h")+common)
	file := r.kernel.name + ".cpp"
	fmt.Fprintf(b, "namespace %s {\n", namespace)
	if f.file == "common.h" {
		fmt.Fprintf(b, "#line 1 \"common.h\"\n%s", f.apply("common.h", common))
	} else {
		b.WriteString("using namespace common;\n")
	}
	fmt.Fprintf(b, "%sinline void run(void** buffers, const int* ints, const float* floats, "+
		"const int block, const int tid, const int threads) {\n", constants)
	at := 0
	for _, in := range r.launch.inputs {
		fmt.Fprintf(b, "const auto %s = static_cast<const %s*>(buffers[%d]);\n", in.name, kernelType(in.array.Dtype()), at)
		at++
	}
	for _, out := range r.launch.outputs {
		fmt.Fprintf(b, "const auto %s = static_cast<%s*>(buffers[%d]);\n", out.name, kernelType(out.dtype), at)
		at++
	}
	for i, p := range r.launch.ints {
		fmt.Fprintf(b, "const int %s = ints[%d];\n", p.name, i)
	}
	for i, p := range r.launch.floats {
		fmt.Fprintf(b, "const float %s = floats[%d];\n", p.name, i)
	}
	fmt.Fprintf(b, "#line 1 \"%s\"\n%s}\n", file, f.apply(file, body))
	for _, c := range r.launch.constants {
		fmt.Fprintf(b, "#undef %s\n", c.name)
	}
	b.WriteString("}\n")
}

// caseNamed returns the case whose name begins with these words.
func caseNamed(t *testing.T, cases []kernelCase, name string) []kernelCase {
	t.Helper()
	i := slices.IndexFunc(cases, func(c kernelCase) bool { return strings.HasPrefix(c.name, name) })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	return cases[i : i+1]
}

// hostRuntime is the source of what runs kernels on the CPU.
func hostRuntime(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("testdata/host.h")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("#include %q\n%s", path, kernelFile("host.h"))
}

// buildHost compiles the kernels of all cases, and those with planted faults in float32.
func buildHost(t *testing.T, cases []kernelCase, faults []plantedFault) *hostProgram {
	t.Helper()
	var b, calls strings.Builder
	fmt.Fprintf(&b, "%snamespace common {\n#line 1 \"common.h\"\n%s}\n", hostRuntime(t), kernelFile("common.h"))
	variants := map[string]int{}
	add := func(key string, r recorded, f plantedFault) {
		n := len(variants)
		variants[key] = n
		hostSource(&b, fmt.Sprint("v", n), r, f)
		fmt.Fprintf(&calls, "case %d: return v%[1]d::run(buffers, ints, floats, block, tid, threads);\n", n)
	}
	record(t, cases, kernelDtypes, func(r recorded) { add(r.variant, r, plantedFault{}) })
	for _, f := range faults {
		record(t, caseNamed(t, cases, f.in), kernelDtypes[:1], func(r recorded) {
			if f.file == "common.h" || f.file == r.kernel.name+".cpp" {
				add(r.variant+f.name, r, f)
			}
		})
	}
	return buildProgram(t, b.String(), calls.String(), variants)
}

// buildProgram compiles a program of which calls has the cases of a switch for the variants, and links
// object files to it.
func buildProgram(t *testing.T, source, calls string, variants map[string]int, objects ...string) *hostProgram {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kernels")
	source += "static void call(int variant, void** buffers, const int* ints, const float* floats, int block, int tid, int threads) {\n" +
		"switch (variant) {\n" + calls + "}\n}\n"
	if out, err := compileHost(source, path, objects); err != nil {
		if out, err := compileHost("int main() {}\n", path, nil); err != nil {
			skipUnlessRequired(t, "there is no C++ compiler with sanitizers: %v %s", err, out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	return &hostProgram{path, variants}
}

// compileHost compiles with as few optimizations as possible: it takes longer than the run.
func compileHost(source, program string, objects []string) ([]byte, error) {
	if err := os.WriteFile(program+".cpp", []byte(source), 0o600); err != nil {
		return nil, err
	}
	args := append(strings.Fields(cmp.Or(os.Getenv("CXX"), "c++")), "-std=c++17", "-O0", "-w", "-Wno-psabi", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-o", program, program+".cpp")
	return exec.Command(args[0], append(args[1:], objects...)...).CombinedOutput()
}

// skipUnlessRequired skips a test of kernels that needs a program that is not installed. .ci/run sets
// GOMFLUX_TEST_KERNELS, with which that is a failure.
func skipUnlessRequired(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("GOMFLUX_TEST_KERNELS") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// A hostRunner runs kernels in a process of a hostProgram.
type hostRunner struct {
	program *hostProgram
	fault   string // name of a planted fault
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
	seed    int32
	runs    int
}

func startHost(t *testing.T, p *hostProgram, fault string, seed int32) *hostRunner {
	t.Helper()
	r := &hostRunner{program: p, fault: fault, seed: seed, process: exec.Command(p.path)}
	r.process.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=0")
	r.process.Stderr = &r.stderr
	in, err := r.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in, r.out = in, bufio.NewReader(out)
	if err := r.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// stop ends the process, and returns what went wrong in it.
func (r *hostRunner) stop() error {
	if r.process.ProcessState != nil {
		return nil
	}
	r.in.Close()
	err := r.process.Wait()
	if err == nil {
		return nil
	}
	return errors.New(r.stderr.String())
}

func (r *hostRunner) run(k *kernel, l launch) (out []*Array) {
	key := l.variant(k)
	variant, ok := r.program.variants[key+r.fault]
	if !ok {
		variant, ok = r.program.variants[key]
	}
	if !ok {
		raise("the variant %s was not recorded", key)
	}
	r.runs++
	var request bytes.Buffer
	write := func(data any) { must(binary.Write(&request, binary.LittleEndian, data)) }
	write([]int32{int32(variant), int32(l.blocks), int32(l.threads), r.seed, int32(len(l.inputs)), int32(len(l.outputs)),
		int32(len(l.ints)), int32(len(l.floats))})
	for _, in := range l.inputs {
		write(int64(in.array.Nbytes()))
	}
	sizes := make([]int, len(l.outputs))
	for i, o := range l.outputs {
		sizes[i] = o.dtype.ItemSize()
		for _, n := range o.shape {
			sizes[i] *= n
		}
		write(int64(sizes[i]))
	}
	ints, floats := l.numbers()
	write(ints[:len(l.ints)])
	write(floats[:len(l.floats)])
	for _, in := range l.inputs {
		request.Write(in.array.Bytes())
	}
	_, err := r.in.Write(request.Bytes())
	for i := 0; err == nil && i < len(l.outputs); i++ {
		data := make([]byte, sizes[i])
		if _, err = io.ReadFull(r.out, data); err == nil {
			out = append(out, FromBytes(data, l.outputs[i].dtype, l.outputs[i].shape...))
		}
	}
	if err != nil {
		raise("%s: %v", key, errors.Join(err, r.stop()))
	}
	return out
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// hostFaults are mistakes in kernels that a GPU may compute with, without an error.
var hostFaults = []plantedFault{
	{"no barrier after a write", "modulated_norm 2", "common.h", "= x;\n  BARRIER;", "= x;", "of partial"},
	{"no barrier before a write", "modulated_norm 2", "common.h", "x = warp_sum(x);\n  BARRIER;", "x = warp_sum(x);", "fault: a race"},
	{"a mask is left out", "norm_rope", "common.h", "mask = 16", "mask = 8", "differ"},
	{"a mask is too large", "norm_rope", "common.h", "mask = 16", "mask = 32", "fault: a shuffle with the mask 32"},
	{"another lane", "modulated_norm 2", "common.h", "partial[tid % 32] :", "partial[31 - tid % 32] :", "that no thread has written"},
	{"half a warp", "norm_rope", "norm_rope.cpp", "h = tid / 32;", "h = tid / 16;", "differ"},
	{"normed values", "norm_rope", "norm_rope.cpp", "h >= values", "h > values", "differ"},
	{"past the end", "gated_sum", "gated_sum.cpp", "if (at >= size) return;", "", "heap-buffer-overflow"},
	{"one past the end", "upsample", "upsample.cpp", "at >= long(rows)", "at > long(rows)", "heap-buffer-overflow"},
	{"past the end of threadgroup memory", "group norm", "group_factors.cpp", "m2s[tid / 32] =", "m2s[tid] =",
		"of m2s, which has 32"},
	{"unwritten threadgroup memory", "group norm", "group_statistics.cpp", "if (lane == 0) counts", "if (tid == 0) counts",
		"of counts that no thread has written"},
	{"threads write the same element", "group norm", "group_statistics.cpp", "  means[mine * C +", "  means[", "fault: a race"},
	{"a thread that ends before a barrier", "group norm", "group_statistics.cpp", "count;\nB", "count;\nif (mine > 0) return;\nB",
		"threads wait at a barrier"},
	{"too much threadgroup memory", "group norm", "group_statistics.cpp", "means, 256", "means, 2048", "bytes of threadgroup memory"},
	{"unaligned", "bias_sum", "bias_sum.cpp", "load<V>(bias + column)", "load<V>(bias + column + 1)", "misaligned"},
	{"an element that is never written", "upsample", "upsample.cpp", "store<V>(out + next + C, p);", "", "differ"},
	{"a shift by too much", "dequantize", "dequantize.cpp", "bits >>= BITS", "bits >>= 8 * BITS", "shift exponent"},
	{"another column", "activation", "activation.cpp", "a_column + column", "column", "differ"},
	{"the other half of a distribution", "activation", "common.h", "? tail : 1.0f - tail", "? 1.0f - tail : tail", "differ"},
	{"a coefficient", "activation", "common.h", "1.421413741f", "1.431413741f", "differ"},
	{"past the end of a local array", "modulated_norm 2", "modulated_norm.cpp", "i < V; i++) v[k][i] = (v", "i <= V; i++) v[k][i] = (v",
		"out of bounds"},
	{"one key too few", "token_attention {2", "token_attention.cpp", "old = before + recent;", "old = before + recent - 1;", "differ"},
	{"a row that no block copies", "token_attention {2", "token_attention.cpp", "!= block % group", "!= 0", "differ"},
	{"the key of another head", "token_attention {1 2", "token_attention.cpp", "? head : heads + head / group)", "? head : heads)",
		"differ"},
	{"the wrong half of a head", "token_attention {2", "token_attention.cpp", "column < D / 2 ? -other", "column >= D / 2 ? -other",
		"differ"},
	{"a barrier between the warps' products and their sum", "row_product {65", "row_product.cpp", "= s[r];\n}\nBARRIER;", "= s[r];\n}",
		"fault: a race"},
	{"the other matrix of a pair", "row_product {130", "row_product.cpp", "(long(r / ROWS) * outputs + row)", "long(row)", "differ"},
	{"a product past the end", "row_product {2 9", "row_product.cpp", "if (tid < ROWS && mine < outputs)", "if (tid < ROWS)",
		"heap-buffer-overflow"},
	{"chunks that overlap", "group norm {1 5 7", "group_apply.cpp", "from = block % chunks * chunk", "from = block % chunks", "differ"},
}

// run computes the cases in all dtypes with the program.
func (p *hostProgram) run(t *testing.T, cases []kernelCase, seed int32) {
	t.Helper()
	r := startHost(t, p, "", seed)
	withRunner(t, r, func() {
		for _, c := range cases {
			for _, dtype := range kernelDtypes {
				before := r.runs
				if err := runCase(c, dtype); err != nil {
					t.Fatalf("%s in %v, seed %d: %v", c.name, dtype, seed, err)
				}
				if r.runs == before {
					t.Errorf("%s in %v: no kernel ran", c.name, dtype)
				}
			}
		}
	})
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// TestKernelsOnHost runs every variant of the kernels on the CPU and compares them with MLX's operations,
// within the tolerances of TestKernels. The threads of a block run in a random order by some seeds, and
// planted faults must be found.
func TestKernelsOnHost(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("on a Mac TestKernels runs them on the GPU")
	}
	all := kernelCases()
	cases, faults := randtest.Some(3, all), randtest.Some(3, hostFaults)
	for _, f := range faults {
		if in := caseNamed(t, all, f.in)[0]; !slices.ContainsFunc(cases, func(c kernelCase) bool { return c.name == in.name }) {
			cases = append(slices.Clone(cases), in)
		}
	}
	p := buildHost(t, cases, faults)
	for seed := range int32(2) {
		p.run(t, cases, seed)
	}
	for _, f := range faults {
		var found error
		withRunner(t, startHost(t, p, f.name, 1), func() { found = runCase(caseNamed(t, cases, f.in)[0], Float32) })
		if found == nil || !strings.Contains(found.Error(), f.want) {
			t.Errorf("planted fault, %s: found %v, expected %q", f.name, found, f.want)
		}
	}
}
