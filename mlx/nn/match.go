package nn

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// Found has the tensors of a checkpoint for a parameter.
type Found struct {
	checkpoint.Tensor // without a name if it is missing
	// Quantized describes a quantized tensor, which has Scales and, if it is affine,
	// Biases. It is nil for other tensors: 8-bit floats may have Scales.
	Quantized      *mlx.Quantization
	Scales, Biases *checkpoint.Tensor
}

// Tensors returns all tensors that were found.
func (f Found) Tensors() (all []checkpoint.Tensor) {
	for _, t := range []*checkpoint.Tensor{&f.Tensor, f.Scales, f.Biases} {
		if t != nil && t.Name != "" {
			all = append(all, *t)
		}
	}
	return all
}

// inFile returns all tensors of the files that were found.
func (f Found) inFile() (all []checkpoint.Tensor) {
	for _, t := range f.Tensors() {
		all = append(all, t.InFile()...)
	}
	return all
}

// companions are the names of tensors that may come with a weight: scales and biases
// of a quantized one, and the scale of 8-bit floats in ComfyUI's and other files.
var companions = []string{"scales", "biases", "scale_weight", "weight_scale"}

// floatScales are the names of the scale of 8-bit floats, in ComfyUI's and in other files.
var floatScales = companions[2:]

// IsFloatScale reports whether a tensor can be the scale of 8-bit floats.
func IsFloatScale(t checkpoint.Tensor) bool { return t.Dtype == checkpoint.F32 && t.Len() == 1 }

// Companions returns the names of the tensors that may come with a weight.
func Companions(weight string) (names []string) {
	for _, name := range companions {
		names = append(names, strings.TrimSuffix(weight, "weight")+name)
	}
	return names
}

// Companion returns the name of the weight that a tensor belongs to, and reports
// whether its name is that of a companion.
func Companion(name string) (weight string, ok bool) {
	for _, own := range companions {
		if module, ok := strings.CutSuffix(name, "."+own); ok {
			return module + ".weight", true
		}
	}
	return "", false
}

// Bytes returns the size of all tensors that were found.
func (f Found) Bytes() (n int64) {
	for _, t := range f.Tensors() {
		n += t.Bytes()
	}
	return n
}

// converting returns the bytes that the tensors take while they are read and converted, beside the
// result: packed matrices are in float32 twice then.
func (f Found) converting() int64 {
	if f.Packing == nil {
		return f.Bytes()
	}
	return f.Bytes() + 2*4*int64(f.Len())
}

// Match finds the tensors of a model's parameters, without loading them. The error,
// which may be nil, lists all tensors that do not fit. Match does not need MLX.
func Match(model any, ck *checkpoint.Checkpoint, o LoadOptions) ([]Found, *MismatchError) {
	return match(Parameters(model), ck, o)
}

func match(params []Parameter, ck *checkpoint.Checkpoint, o LoadOptions) ([]Found, *MismatchError) {
	m := &matcher{ck: ck, o: o, used: map[string]bool{}, MismatchError: MismatchError{Name: o.Name, Dir: ck.Dir, Inferred: ck.Inferred}}
	found := make([]Found, len(params))
	for i, p := range params {
		found[i] = m.match(p)
	}
	for name, t := range ck.Tensors {
		if !m.used[name] && !o.ignores(name) {
			m.Unexpected = append(m.Unexpected, Misfit{name, fmt.Sprintf(" %v in %s", t.Shape, t.File)})
		}
	}
	slices.SortFunc(m.Unexpected, func(a, b Misfit) int { return strings.Compare(a.Name, b.Name) })
	if m.empty() {
		return found, nil
	}
	return found, &m.MismatchError
}

// A matcher finds tensors and collects those that do not fit.
type matcher struct {
	MismatchError
	ck   *checkpoint.Checkpoint
	o    LoadOptions
	used map[string]bool // names in the checkpoint
}

// find returns the tensor with a name, which may have one of the prefixes, or nil.
func (m *matcher) find(name string) *checkpoint.Tensor {
	for _, prefix := range append([]string{""}, m.o.Prefixes...) {
		if t, ok := m.ck.Tensors[prefix+name]; ok {
			m.used[prefix+name] = true
			return &t
		}
	}
	return nil
}

func (m *matcher) match(p Parameter) (f Found) {
	name := p.Name
	t := m.find(name)
	if t == nil && p.other != "" {
		name = p.other
		t = m.find(name)
	}
	if t == nil {
		m.Missing = append(m.Missing, Misfit{p.Name, fmt.Sprintf(", expected %v", p.shape)})
		return f
	}
	f.Tensor = *t
	module := strings.TrimSuffix(name, "weight")
	switch {
	case t.Dtype == checkpoint.U32 && p.kind != OtherParam:
		m.matchPacked(p, &f, module)
		return f
	case t.Packing != nil: // complete, or there would be none
	case t.Dtype == checkpoint.F8E4M3:
		for _, scale := range floatScales {
			if f.Scales == nil {
				f.Scales = m.find(module + scale)
			}
		}
		if s := f.Scales; s != nil && !IsFloatScale(*s) {
			m.misshapen(*s, "one number, F32")
		}
	case !t.Dtype.IsWeight():
		m.Mistyped = append(m.Mistyped, Misfit{t.Name, fmt.Sprintf(", expected F32, F16 or BF16, found %s in %s", t.Dtype, t.File)})
	}
	if !slices.Equal(t.Shape, p.shape) {
		m.misshapen(*t, fmt.Sprint(p.shape))
	}
	return f
}

func (m *matcher) misshapen(t checkpoint.Tensor, expected string) {
	found := fmt.Sprint(t.Shape)
	if t.Stored != nil {
		found = fmt.Sprintf("%v (stored as %v)", t.Shape, t.Stored)
	}
	m.Misshapen = append(m.Misshapen, Misfit{t.Name, fmt.Sprintf(", expected %s, found %s in %s", expected, found, t.File)})
}

// matchPacked determines how a matrix is quantized: bits and group follow from the
// shapes of its companions.
func (m *matcher) matchPacked(p Parameter, f *Found, module string) {
	rows, columns := p.shape[0], p.shape[1]
	f.Scales, f.Biases = m.find(module+"scales"), m.find(module+"biases")
	missing := func(what string) {
		m.Missing = append(m.Missing,
			Misfit{module + what, fmt.Sprintf(", without which %s (%s in %s) cannot be unpacked", f.Name, f.Dtype, f.File)})
	}
	if f.Scales == nil {
		missing("scales")
		return
	}
	if len(f.Shape) != 2 || f.Shape[0] != rows || f.Shape[1]*32%columns != 0 {
		m.misshapen(f.Tensor, fmt.Sprintf("%v packed into numbers of 32 bits", p.shape))
		return
	}
	q := mlx.Quantization{Mode: "affine", Bits: f.Shape[1] * 32 / columns}
	if s := f.Scales.Shape; len(s) == 2 && s[0] == rows && s[1] > 0 && columns%s[1] == 0 {
		q.Group = columns / s[1]
	}
	if f.Scales.Dtype == checkpoint.U8 { // mxfp4, mxfp8 or nvfp4
		if block, ok := mlx.Block(q.Bits, q.Group); ok {
			f.Quantized = &block
			return
		}
		m.misshapen(*f.Scales, fmt.Sprintf("one for every 16 or 32 of %v, as mxfp4, mxfp8 and nvfp4 have", p.shape))
		return
	}
	switch {
	case !slices.Contains([]int{2, 3, 4, 5, 6, 8}, q.Bits):
		m.misshapen(f.Tensor, fmt.Sprintf("%v packed with 2, 3, 4, 5, 6 or 8 bits", p.shape))
	case !slices.Contains([]int{32, 64, 128}, q.Group):
		m.misshapen(*f.Scales, fmt.Sprintf("one for every 32, 64 or 128 of %v", p.shape))
	case !f.Scales.Dtype.IsWeight():
		m.Mistyped = append(m.Mistyped,
			Misfit{f.Scales.Name, fmt.Sprintf(", expected F32, F16, BF16 or U8, found %s in %s", f.Scales.Dtype, f.Scales.File)})
	case f.Biases == nil:
		missing("biases")
	case !slices.Equal(f.Biases.Shape, f.Scales.Shape):
		m.misshapen(*f.Biases, fmt.Sprintf("%v, as of %s", f.Scales.Shape, f.Scales.Name))
	case f.Biases.Dtype != f.Scales.Dtype:
		m.Mistyped = append(m.Mistyped,
			Misfit{f.Biases.Name,
				fmt.Sprintf(", expected %s, as of %s, found %s in %s", f.Scales.Dtype, f.Scales.Name, f.Biases.Dtype, f.Biases.File)})
	default:
		f.Quantized = &q
	}
}

func (o LoadOptions) ignores(name string) bool {
	for _, prefix := range append([]string{""}, o.Prefixes...) {
		rest, ok := strings.CutPrefix(name, prefix)
		for _, pattern := range o.Ignore {
			if hit, err := path.Match(pattern, rest); ok && err == nil && hit {
				return true
			}
		}
	}
	return false
}

// A Misfit is a tensor that does not fit a model.
type Misfit struct {
	Name string
	Why  string // follows the name in a message
}

func (m Misfit) String() string { return m.Name + m.Why }

// A MismatchError lists every tensor of a checkpoint that does not fit the
// model its config describes.
type MismatchError struct {
	Name, Dir                                string
	Inferred                                 bool // whether the config was inferred from the tensors
	Missing, Unexpected, Misshapen, Mistyped []Misfit
}

func (e *MismatchError) empty() bool {
	return len(e.Missing)+len(e.Unexpected)+len(e.Misshapen)+len(e.Mistyped) == 0
}

// Title returns the first line of the error.
func (e *MismatchError) Title() string {
	describes := "its config describes"
	if e.Inferred {
		describes = "was inferred from their names and shapes"
	}
	return fmt.Sprintf("the tensors in %s do not match the %s that %s:", e.Dir, e.Name, describes)
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	b.WriteString(e.Title())
	for _, group := range []struct {
		what  string
		lines []Misfit
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"wrong shape", e.Misshapen}, {"wrong dtype", e.Mistyped}} {
		const most = 200 // lines: a file may have any number of tensors
		for _, line := range group.lines[:min(len(group.lines), most)] {
			fmt.Fprintf(&b, "\n\t%s: %s", group.what, line)
		}
		if more := len(group.lines) - most; more > 0 {
			fmt.Fprintf(&b, "\n\t%s: %d more", group.what, more)
		}
	}
	return b.String()
}
