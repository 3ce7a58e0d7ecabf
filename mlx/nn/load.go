package nn

import (
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// LoadOptions describes how a model is loaded from a checkpoint.
type LoadOptions struct {
	// Name is the component's name, the root of all module paths.
	Name string
	// Points has the hook that modules pass their tensors by.
	Points *hooks.Points
	// Dtype is the dtype that the model computes in. Tensors stored in a larger dtype
	// are converted to it; tensors in a smaller dtype stay and are cast at each use.
	Dtype mlx.Dtype
	// Prefixes are prefixes that all names in the checkpoint may have.
	Prefixes []string
	// Ignore are patterns (path.Match) of tensors that a checkpoint may have and the
	// model does not use.
	Ignore []string
	// Adapt, if set, returns the new value of a parameter. It gets x in the model's
	// layout and in float32, and may return x itself.
	Adapt func(p Parameter, x *mlx.Array) *mlx.Array
	// Quantize, if set, returns how to quantize a parameter, or nil not to. Parameters
	// that are quantized in the checkpoint stay as they are, and are not adapted.
	Quantize func(p Parameter) *mlx.Quantization
	// Random draws the tensors of a [RandomCheckpoint], which has no files to read.
	Random bool
	// ReadAhead is how many bytes may be read beyond the parameter that is waited for. MLX reads
	// several tensors at a time, and reads while it converts others.
	ReadAhead int64
	// First, if set, reports whether a parameter is loaded before all others. When those are loaded,
	// Between is called, which may use them and free them.
	First   func(p Parameter) bool
	Between func()
	// Progress, if set, is called with the numbers of bytes loaded and in total.
	Progress func(done, total int64)
}

// A Parameter is a Param with its names in the checkpoint and in the model.
type Parameter struct {
	*Param
	// Name is the name in a checkpoint, without a prefix.
	Name string
	// Field is the path of the Go field: Layers[0].Attention.ToQ.Weight.
	Field string

	options []string // of the field's tag
}

// Stored returns the shape of the tensor in a checkpoint.
func (p Parameter) Stored() []int { return p.shape }

// Kind returns the role of the parameter in its module.
func (p Parameter) Kind() Kind { return p.kind }

// Transform returns how the layout of the tensor in memory differs from that in the
// checkpoint: "oihw" for a convolution's weight, whose channels become last,
// "last,oihw" for a causal 3-D convolution's, of which only the last slice in time is
// loaded, or "".
func (p Parameter) Transform() string { return strings.Join(p.options, ",") }

// Shape returns the shape of the parameter in the layout of diffusers, without the
// axis of which only the last slice is loaded; see [Param.Last].
func (p Parameter) Shape() []int {
	if p.last {
		return slices.Delete(slices.Clone(p.shape), 2, 3)
	}
	return p.shape
}

// Original returns the loaded parameter in a dtype, dequantized, in the layout of
// diffusers.
func (p Parameter) Original(dtype mlx.Dtype) *mlx.Array {
	x := p.As(dtype)
	if slices.Contains(p.options, "oihw") {
		x = ChannelsFirst(x)
	}
	return x
}

// Load fills the parameters of a model (a pointer to a struct) from a
// checkpoint and binds its modules to their paths. If tensors do not fit, it loads
// nothing and lists all of them in a [*MismatchError]. It must run on the MLX thread.
func Load(model any, ck *checkpoint.Checkpoint, o LoadOptions) error {
	Bind(model, o.Name, o.Points)
	params := Parameters(model)
	found, mismatch := match(params, ck, o)
	if mismatch != nil {
		return mismatch
	}
	var opened *files
	if o.Random {
		opened = &files{numbers: drawNumbers(found)}
		defer opened.numbers.Free()
	} else {
		var err error
		if opened, err = openFiles(ck, found); err != nil {
			return err
		}
	}
	l := loading{files: opened, options: o}
	for _, f := range found {
		l.total += f.Bytes()
	}
	defer func() { // also after a panic, by which a job is interrupted
		if len(l.started) > 0 {
			mlx.Drain()
		}
	}()
	first := func(p Parameter) bool { return o.First != nil && o.First(p) }
	l.load(params, found, first)
	if o.First != nil {
		o.Between()
	}
	l.load(params, found, func(p Parameter) bool { return !first(p) })
	if mlx.CurrentDevice() != mlx.CPU {
		joinStacks(model)
	}
	return nil
}

// loading is the state of [Load].
type loading struct {
	files   *files
	options LoadOptions
	started []started // in order
	ahead   int64     // bytes that they take while they are read and converted
	done    int64     // bytes of the parameters that are loaded
	total   int64
}

// A started parameter is being read.
type started struct {
	parameter Parameter
	found     Found
	made      []*mlx.Array // its arrays
	quantized *mlx.Quantization
}

// load loads some of the parameters.
func (l *loading) load(params []Parameter, found []Found, some func(Parameter) bool) {
	for i, p := range params {
		if !some(p) {
			continue
		}
		l.start(p, found[i])
		for l.ahead > l.options.ReadAhead {
			l.finish()
		}
	}
	for len(l.started) > 0 {
		l.finish()
	}
}

// start begins to read and convert the tensors of a parameter.
func (l *loading) start(p Parameter, f Found) {
	defer naming(f.Tensor)
	s := started{parameter: p, found: f, quantized: f.Quantized}
	s.made = mlx.Scopes(func() (made []*mlx.Array) {
		if s.quantized == nil {
			made, s.quantized = p.make(l.files.plain(f), l.options)
			return made
		}
		for _, a := range l.files.packed(f) {
			if a.Dtype().IsFloat() {
				a = a.AsType(smaller(a.Dtype(), l.options.Dtype))
			}
			made = append(made, a)
		}
		return made
	})
	mlx.AsyncEval(s.made...)
	l.started = append(l.started, s)
	l.ahead += f.converting()
}

// finish waits for the parameter that was started first, and sets it.
func (l *loading) finish() {
	s := l.started[0]
	l.started = l.started[1:]
	defer naming(s.found.Tensor)
	mlx.Eval(s.made...)
	s.parameter.packed = nil
	s.parameter.set(s.made, s.quantized)
	l.files.done(s.found)
	for _, a := range s.parameter.Arrays() {
		mlx.Keep(a)
	}
	l.ahead -= s.found.converting()
	mlx.StopPoint()
	if l.done += s.found.Bytes(); l.options.Progress != nil {
		l.options.Progress(l.done, l.total)
	}
}

// make converts a tensor as it is stored to the arrays of the parameter, and returns
// how it is quantized.
func (p Parameter) make(a *mlx.Array, o LoadOptions) ([]*mlx.Array, *mlx.Quantization) {
	dtype := smaller(a.Dtype(), o.Dtype)
	a = p.transform(a)
	if o.Adapt != nil {
		a = o.Adapt(p, a.AsType(mlx.Float32))
	}
	a = a.AsType(dtype)
	if o.Quantize != nil {
		if q := o.Quantize(p); q != nil {
			return a.Quantize(*q).Arrays(), q
		}
	}
	return []*mlx.Array{a.Contiguous()}, nil
}

// smaller returns the dtype of a tensor in memory. Only float32 is larger than the
// other dtypes.
func smaller(stored, dtype mlx.Dtype) mlx.Dtype {
	if dtype == mlx.Float32 && stored != mlx.Float32 {
		return stored
	}
	return dtype
}

// transform converts a tensor from the checkpoint's layout to the model's.
func (p Parameter) transform(a *mlx.Array) *mlx.Array {
	for _, option := range p.options {
		switch option {
		case "last": // see Param.Last
			n := a.Dim(2)
			a = a.Slice(2, n-1, n).Squeeze(2)
		case "oihw": // torch's convolution weights; MLX has channels last
			a = a.Transpose(0, 2, 3, 1)
		default:
			panic("nn: unknown tag option " + option)
		}
	}
	return a
}

// naming adds file and name of the tensor to an error of MLX, such as one about
// reading. It is to be deferred.
func naming(t checkpoint.Tensor) {
	if p := recover(); p != nil {
		if e, ok := p.(*mlx.Error); ok {
			mlx.Throw(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, e))
		}
		panic(p)
	}
}

// files are the files of a checkpoint while it is loaded.
type files struct {
	numbers *mlx.Array // random numbers that all tensors consist of, nil if there are files

	arrays map[string]*mlx.Array // by the tensors' names in the files, not read yet
	uses   map[string]int        // still to come, by the same names
	ends   map[string]func(checkpoint.Tensor) error
}

// openFiles opens the files with the tensors that were found.
func openFiles(ck *checkpoint.Checkpoint, found []Found) (*files, error) {
	out := &files{
		arrays: map[string]*mlx.Array{}, uses: map[string]int{}, ends: map[string]func(checkpoint.Tensor) error{},
	}
	byFile := map[string][]string{}
	for _, f := range found {
		for _, t := range f.inFile() {
			if out.uses[t.Name]++; out.uses[t.Name] == 1 {
				byFile[t.File] = append(byFile[t.File], t.Name)
			}
		}
	}
	for _, f := range ck.Files {
		names := byFile[f.Name]
		if len(names) == 0 {
			continue
		}
		path, err := f.Path()
		if err != nil {
			return nil, err
		}
		tensors, err := mlx.LoadSafetensors(path, names)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		maps.Copy(out.arrays, tensors)
		out.ends[f.Name] = func(t checkpoint.Tensor) error { return checkEnd(path, f.Header.DataOffset+t.End) }
	}
	return out, nil
}

// read returns a tensor in the layout of diffusers.
func (f *files) read(t checkpoint.Tensor) *mlx.Array {
	if f.numbers != nil {
		return randomTensor(f.numbers, t)
	}
	var a *mlx.Array
	if t.Packing != nil {
		a = f.unpack(t)
	} else {
		a = selectRows(f.arrays[t.Name], t.Transforms)
	}
	for _, form := range t.Transforms {
		switch form.Op {
		case checkpoint.TransformChannelsFirst:
			a = ChannelsFirst(a)
		case checkpoint.TransformSqueeze, checkpoint.TransformExpand, checkpoint.TransformFrame,
			checkpoint.TransformSixRows:
			a = a.Reshape(t.Shape...)
		}
	}
	return a
}

// selectRows applies the transforms that select and move rows.
func selectRows(a *mlx.Array, forms []checkpoint.Transform) *mlx.Array {
	for _, form := range forms {
		switch form.Op {
		case checkpoint.TransformRows:
			a = a.Slice(0, form.From, form.To)
		case checkpoint.TransformSwap:
			halves := a.Split(2, 0)
			a = mlx.Concat(0, halves[1], halves[0])
		}
	}
	return a
}

// packed returns the arrays of a quantized tensor.
func (f *files) packed(found Found) (arrays []*mlx.Array) {
	for _, t := range found.Tensors() {
		arrays = append(arrays, f.read(t).Contiguous())
	}
	return arrays
}

// plain returns a tensor that is not quantized. 8-bit floats are multiplied by their
// scale.
func (f *files) plain(found Found) *mlx.Array {
	a := f.read(found.Tensor)
	if found.Dtype != checkpoint.F8E4M3 || found.Packing != nil {
		return a
	}
	a = a.FromFP8(mlx.BFloat16) // which holds all of its numbers
	if found.Scales != nil {
		a = a.AsType(mlx.Float32).Mul(f.read(*found.Scales).AsType(mlx.Float32)).AsType(mlx.BFloat16)
	}
	return a
}

// done checks that the files still had the tensor when it was read, and throws an
// error if not. It frees arrays that are not needed again.
func (f *files) done(found Found) {
	if f.numbers != nil {
		return
	}
	for _, t := range found.inFile() {
		if err := f.ends[t.File](t); err != nil {
			mlx.Throw(fmt.Errorf("%s: tensor %s: %w", found.File, found.Name, err))
		}
		if f.uses[t.Name]--; f.uses[t.Name] == 0 {
			f.arrays[t.Name].Free()
		}
	}
}

// checkEnd checks that a file still reaches to end, after a tensor was read up to
// there. MLX 0.32 does not notice if a read of less than 32 MiB fails, and leaves the
// array uninitialized.
func checkEnd(path string, end int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() < end {
		return fmt.Errorf("the file was cut short to %d bytes while it was read, expected at least %d", info.Size(), end)
	}
	return nil
}

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
	m := &matcher{ck: ck, o: o, used: map[string]bool{}, MismatchError: MismatchError{Name: o.Name, Dir: ck.Dir}}
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
		for _, scale := range []string{"scale_weight", "weight_scale"} { // in ComfyUI's and in other files
			if f.Scales == nil {
				f.Scales = m.find(module + scale)
			}
		}
		if s := f.Scales; s != nil && (s.Dtype != checkpoint.F32 || s.Bytes() != 4) {
			m.misshapen(*s, "one number, F32")
		}
	case !t.Dtype.IsWeight():
		why := fmt.Sprintf(", expected F32, F16 or BF16, found %s in %s", t.Dtype, t.File)
		if t.Dtype == checkpoint.I8 {
			why += " without the tensor comfy_quant, which has the format in ComfyUI's files"
		}
		m.Mistyped = append(m.Mistyped, Misfit{t.Name, why})
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
	Missing, Unexpected, Misshapen, Mistyped []Misfit
}

func (e *MismatchError) empty() bool {
	return len(e.Missing)+len(e.Unexpected)+len(e.Misshapen)+len(e.Mistyped) == 0
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the tensors in %s do not match the %s that its config describes:", e.Dir, e.Name)
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

// Bind sets the paths of a model's modules, which begin with name, and their hook.
func Bind(model any, name string, points *hooks.Points) {
	walk(reflect.ValueOf(model), at{path: name}, visitor{
		module: func(id hooks.Module, m *Module, tag reflect.StructTag) { m.bind(id, points, tag) },
	})
}

// Parameters lists the parameters of a model (a pointer to a struct) in the order of
// its fields.
func Parameters(model any) (params []Parameter) {
	walk(reflect.ValueOf(model), at{}, visitor{param: func(a at, p *Param, options []string) {
		if p.last {
			options = append([]string{"last"}, options...)
		}
		if p.shape != nil {
			params = append(params, Parameter{p, a.path, a.field, options})
		}
	}})
	return params
}

// Modules lists the modules of a model whose component has a name, outermost first.
func Modules(model any, name string) (all []hooks.Module) {
	walk(reflect.ValueOf(model), at{path: name}, visitor{
		module: func(id hooks.Module, _ *Module, _ reflect.StructTag) { all = append(all, id) },
	})
	return all
}

// Linears returns a model's linear layers by their paths, without the component's
// name.
func Linears(model any) map[string]*Linear {
	found := map[string]*Linear{}
	walk(reflect.ValueOf(model), at{}, visitor{linear: func(a at, d *Linear) { found[a.path] = d }})
	return found
}

var (
	moduleType = reflect.TypeFor[Module]()
	paramType  = reflect.TypeFor[Param]()
	stackType  = reflect.TypeFor[Stack]()
)

// at is a position in a model: its path in checkpoints, and in Go.
type at struct{ path, field string }

// element returns the position of an element of a slice or a map.
func (a at) element(name, index string) at {
	return at{join(a.path, name), a.field + "[" + index + "]"}
}

// A visitor has functions that are called for the parts of a model. They may be nil.
type visitor struct {
	module func(hooks.Module, *Module, reflect.StructTag)
	linear func(at, *Linear)
	param  func(at, *Param, []string)
	stack  func(*Stack)
}

// walk visits everything below v, depth first.
func walk(v reflect.Value, a at, to visitor) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if d, ok := v.Interface().(*Linear); ok && v.Kind() == reflect.Pointer && to.linear != nil {
			to.linear(a, d)
		}
		walk(v.Elem(), a, to)
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), a.element(strconv.Itoa(i), strconv.Itoa(i)), to)
		}
	case reflect.Map: // torch.nn.ModuleDict
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			walk(v.MapIndex(key), a.element(key.String(), strconv.Quote(key.String())), to)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Type == moduleType && to.module != nil {
				id := hooks.Module{Name: a.path, Class: v.Type().String()}
				to.module(id, v.Field(i).Addr().Interface().(*Module), field.Tag)
			}
			if field.Type == stackType && to.stack != nil {
				to.stack(v.Field(i).Addr().Interface().(*Stack))
			}
			tag, ok := field.Tag.Lookup("w")
			if !ok {
				continue
			}
			options := strings.Split(tag, ",")
			child := at{a.path, join(a.field, field.Name)}
			if field.Anonymous { // its fields are named without it
				child.field = a.field
			}
			if options[0] != "." {
				child.path = join(a.path, options[0])
			}
			if field.Type != paramType {
				walk(v.Field(i), child, to)
			} else if to.param != nil {
				to.param(child, v.Field(i).Addr().Interface().(*Param), options[1:])
			}
		}
	default:
		panic(fmt.Sprintf("nn: %s: field of type %v in a model", a.path, v.Type()))
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
