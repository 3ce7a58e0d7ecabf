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

// LoadOptions says how a checkpoint fits a model.
type LoadOptions struct {
	// Name is the component's name, the root of all module paths.
	Name string
	// Points is where the modules ask for a hook.
	Points *hooks.Points
	// Dtype is what the model computes in. Tensors that are stored larger are
	// made as small; smaller ones stay and are cast at each use.
	Dtype mlx.Dtype
	// Prefixes are what the checkpoint may put before all names.
	Prefixes []string
	// Ignore are patterns (path.Match) of names that a checkpoint may have and
	// this model does not use.
	Ignore []string
	// Adapt, if set, changes parameters: it gets one in the form that it has in
	// memory, but in float32, and returns what takes its place, or it as it is.
	Adapt func(p Parameter, x *mlx.Array) *mlx.Array
	// Quantize, if set, says how a parameter is to be quantized, nil for not at all.
	// Those that the checkpoint has quantized stay as they are, and are not adapted.
	Quantize func(p Parameter) *mlx.Quantization
	// Progress, if set, is told how many bytes of how many are loaded.
	Progress func(done, total int64)
}

// A Parameter is a Param of a model with where it comes from and where it is.
type Parameter struct {
	*Param
	// Name is the tensor's in a checkpoint, without a prefix.
	Name string
	// Field is the path of Go's fields: Layers[0].Attention.ToQ.Weight.
	Field string

	options []string // of the tag
}

// Stored is the shape of the tensor in a checkpoint.
func (p Parameter) Stored() []int { return p.shape }

// Kind is what the parameter is to its module.
func (p Parameter) Kind() Kind { return p.kind }

// Transform says what is done to the tensor before it is in memory, "" for
// nothing: oihw for a convolution's weight, which gets its channels last; last,oihw
// for a causal 3-D one's, of which the last slice in time is kept.
func (p Parameter) Transform() string { return strings.Join(p.options, ",") }

// Load fills the parameters of a model (a pointer to a struct) from a
// checkpoint and binds its modules to their paths. All that does not fit is
// reported together, in a [*MismatchError]; then nothing is loaded. It must run
// on the MLX thread.
func Load(model any, ck *checkpoint.Checkpoint, o LoadOptions) error {
	Bind(model, o.Name, o.Points)
	params := Parameters(model)
	found, mismatch := match(params, ck, o)
	if mismatch != nil {
		return mismatch
	}
	files, err := openFiles(ck, found)
	if err != nil {
		return err
	}
	var total, done int64
	for _, f := range found {
		total += f.Bytes()
	}
	for i, p := range params {
		p.load(found[i], files, o)
		for _, a := range p.Arrays() {
			mlx.Keep(a)
		}
		mlx.StopPoint()
		if done += found[i].Bytes(); o.Progress != nil {
			o.Progress(done, total)
		}
	}
	return nil
}

// load makes the parameter of what was found for it.
func (p Parameter) load(f Found, files *files, o LoadOptions) {
	defer naming(f.Tensor)
	q := f.Quantized
	made := mlx.Scopes(func() (made []*mlx.Array) {
		if q != nil {
			for _, a := range files.packed(f) {
				if a.Dtype().IsFloat() {
					a = a.AsType(smaller(a.Dtype(), o.Dtype))
				}
				made = append(made, a)
			}
		} else {
			made, q = p.make(files.plain(f), o)
		}
		mlx.Eval(made...)
		return made
	})
	p.Array, p.packed = made[0], nil
	if q != nil {
		p.packed = q.Of(made)
	}
	files.done(f)
}

// make takes a tensor as it is stored to the arrays that the parameter is in, and
// says how it was quantized.
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

// smaller is the dtype that a tensor is in memory in: halves are smaller than
// float32 alone.
func smaller(stored, dtype mlx.Dtype) mlx.Dtype {
	if dtype == mlx.Float32 && stored != mlx.Float32 {
		return stored
	}
	return dtype
}

// transform takes a tensor from the checkpoint's form to the model's.
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

// naming puts a tensor's name to an error of MLX's, which one about reading a
// file is.
func naming(t checkpoint.Tensor) {
	if p := recover(); p != nil {
		if e, ok := p.(*mlx.Error); ok {
			mlx.Throw(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, e))
		}
		panic(p)
	}
}

// files are those of a checkpoint while it is loaded.
type files struct {
	arrays map[string]*mlx.Array // by the tensors' names in the files, not read yet
	uses   map[string]int        // to come
	ends   map[string]func(checkpoint.Tensor) error
}

// openFiles opens those that hold what was found.
func openFiles(ck *checkpoint.Checkpoint, found []Found) (*files, error) {
	out := &files{map[string]*mlx.Array{}, map[string]int{}, map[string]func(checkpoint.Tensor) error{}}
	byFile := map[string][]string{}
	for _, f := range found {
		for _, t := range f.Tensors() {
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

// read is a tensor in its form of diffusers.
func (f *files) read(t checkpoint.Tensor) *mlx.Array {
	a := f.arrays[t.Name]
	for _, form := range t.Forms {
		switch form.Op {
		case checkpoint.FormRows:
			a = a.Slice(0, form.From, form.To)
		case checkpoint.FormSwap:
			halves := a.Split(2, 0)
			a = mlx.Concat(0, halves[1], halves[0])
		case checkpoint.FormChannelsFirst:
			a = ChannelsFirst(a)
		case checkpoint.FormSqueeze, checkpoint.FormExpand:
			a = a.Reshape(t.Shape...)
		}
	}
	return a
}

// packed are the arrays of a quantized tensor.
func (f *files) packed(found Found) (arrays []*mlx.Array) {
	for _, t := range found.Tensors() {
		arrays = append(arrays, f.read(t).Contiguous())
	}
	return arrays
}

// plain is a tensor that is not packed: 8-bit floats are multiplied with their
// factor.
func (f *files) plain(found Found) *mlx.Array {
	a := f.read(found.Tensor)
	if found.Dtype != checkpoint.F8E4M3 {
		return a
	}
	a = a.FromFP8(mlx.BFloat16) // which holds all of its numbers
	if found.Scales != nil {
		a = a.AsType(mlx.Float32).Mul(f.read(*found.Scales).AsType(mlx.Float32)).AsType(mlx.BFloat16)
	}
	return a
}

// done makes sure that what was evaluated had been in the files, throws what is
// wrong with them, and frees what is not needed again.
func (f *files) done(found Found) {
	for _, t := range found.Tensors() {
		if err := f.ends[t.File](t); err != nil {
			mlx.Throw(fmt.Errorf("%s: tensor %s: %w", found.File, found.Name, err))
		}
		if f.uses[t.Name]--; f.uses[t.Name] == 0 {
			f.arrays[t.Name].Free()
		}
	}
}

// checkEnd makes sure that a file still reaches to end, after a tensor was read
// up to there: MLX 0.32 does not notice when a read of less than 32 MiB fails,
// and leaves in the array what was in memory.
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

// Found is what a checkpoint has for a parameter.
type Found struct {
	checkpoint.Tensor // without a name if there is none
	// Quantized says how the tensor is packed, with Scales and, if it is affine,
	// Biases; nil if it is not. Scales alone is the factor of 8-bit floats.
	Quantized      *mlx.Quantization
	Scales, Biases *checkpoint.Tensor
}

// Tensors are all of them.
func (f Found) Tensors() (all []checkpoint.Tensor) {
	for _, t := range []*checkpoint.Tensor{&f.Tensor, f.Scales, f.Biases} {
		if t != nil && t.Name != "" {
			all = append(all, *t)
		}
	}
	return all
}

// companions are what may come with a weight in a module: scales and biases of a
// quantized one, and what ComfyUI and others call the factor of 8-bit floats.
var companions = []string{"scales", "biases", "scale_weight", "weight_scale"}

// Companions are the names of what may come with a weight.
func Companions(weight string) (names []string) {
	for _, name := range companions {
		names = append(names, strings.TrimSuffix(weight, "weight")+name)
	}
	return names
}

// Companion returns the name of the weight that a tensor comes with, by its own
// name, and reports whether there may be one.
func Companion(name string) (weight string, ok bool) {
	for _, own := range companions {
		if module, ok := strings.CutSuffix(name, "."+own); ok {
			return module + ".weight", true
		}
	}
	return "", false
}

// Bytes is the size of all of them.
func (f Found) Bytes() (n int64) {
	for _, t := range f.Tensors() {
		n += t.Bytes()
	}
	return n
}

// Match finds the tensors of every one of a model's parameters, without loading
// any. The error, nil for none, is about all that does not fit. It needs no MLX.
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

// A matcher finds tensors and collects what does not fit.
type matcher struct {
	MismatchError
	ck   *checkpoint.Checkpoint
	o    LoadOptions
	used map[string]bool // by their names in the checkpoint
}

// find is the tensor of a name, or of the name behind one of the prefixes; nil
// for none.
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
	case t.Dtype == checkpoint.F8E4M3:
		for _, scale := range []string{"scale_weight", "weight_scale"} { // as ComfyUI and as others call it
			if f.Scales == nil {
				f.Scales = m.find(module + scale)
			}
		}
		if s := f.Scales; s != nil && (s.Dtype != checkpoint.F32 || s.Bytes() != 4) {
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

// matchPacked finds out how a matrix is quantized: bits and group follow from
// the shapes of what it comes with.
func (m *matcher) matchPacked(p Parameter, f *Found, module string) {
	rows, columns := p.shape[0], p.shape[1]
	f.Scales, f.Biases = m.find(module+"scales"), m.find(module+"biases")
	missing := func(what string) {
		m.Missing = append(m.Missing, Misfit{module + what, fmt.Sprintf(", without which %s (%s in %s) cannot be unpacked", f.Name, f.Dtype, f.File)})
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
	if f.Scales.Dtype == checkpoint.U8 { // of floating-point blocks
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
		m.Mistyped = append(m.Mistyped, Misfit{f.Scales.Name, fmt.Sprintf(", expected F32, F16, BF16 or U8, found %s in %s", f.Scales.Dtype, f.Scales.File)})
	case f.Biases == nil:
		missing("biases")
	case !slices.Equal(f.Biases.Shape, f.Scales.Shape):
		m.misshapen(*f.Biases, fmt.Sprintf("%v, as of %s", f.Scales.Shape, f.Scales.Name))
	case f.Biases.Dtype != f.Scales.Dtype:
		m.Mistyped = append(m.Mistyped, Misfit{f.Biases.Name, fmt.Sprintf(", expected %s, as of %s, found %s in %s", f.Scales.Dtype, f.Scales.Name, f.Biases.Dtype, f.Biases.File)})
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
	Why  string // what follows the name in a message
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
	fmt.Fprintf(&b, "the tensors in %s are not those of the %s that its config describes:", e.Dir, e.Name)
	for _, group := range []struct {
		what  string
		lines []Misfit
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"wrong shape", e.Misshapen}, {"wrong dtype", e.Mistyped}} {
		const most = 200 // lines, of files that can have any number of tensors
		for _, line := range group.lines[:min(len(group.lines), most)] {
			fmt.Fprintf(&b, "\n\t%s: %s", group.what, line)
		}
		if more := len(group.lines) - most; more > 0 {
			fmt.Fprintf(&b, "\n\t%s: %d more", group.what, more)
		}
	}
	return b.String()
}

// Bind tells the modules of a model their paths, under name, and where to ask
// for a hook.
func Bind(model any, name string, points *hooks.Points) {
	walk(reflect.ValueOf(model), at{path: name}, visitor{module: func(a at, m *Module) { m.bind(a.path, points) }})
}

// Parameters lists what a model (a pointer to a struct) has of parameters, in
// the order of its fields.
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

// Linears are a model's linear layers by their names, without the component's.
func Linears(model any) map[string]*Dense {
	found := map[string]*Dense{}
	walk(reflect.ValueOf(model), at{}, visitor{linear: func(a at, d *Dense) { found[a.path] = d }})
	return found
}

var (
	moduleType = reflect.TypeFor[Module]()
	paramType  = reflect.TypeFor[Param]()
)

// at is a place in a model: by its name in checkpoints, and by Go's.
type at struct{ path, field string }

// element is the place of an element of a slice or a map.
func (a at) element(name, index string) at {
	return at{join(a.path, name), a.field + "[" + index + "]"}
}

// A visitor is told what a model has; its functions may be nil.
type visitor struct {
	module func(at, *Module)
	linear func(at, *Dense)
	param  func(at, *Param, []string)
}

// walk visits what is under v, depth first, with its places.
func walk(v reflect.Value, a at, to visitor) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if d, ok := v.Interface().(*Dense); ok && v.Kind() == reflect.Pointer && to.linear != nil {
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
				to.module(a, v.Field(i).Addr().Interface().(*Module))
			}
			tag, ok := field.Tag.Lookup("w")
			if !ok {
				continue
			}
			options := strings.Split(tag, ",")
			child := at{a.path, join(a.field, field.Name)}
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
