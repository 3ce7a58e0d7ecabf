package nn

import (
	"fmt"
	"maps"
	"os"
	"slices"
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
	// Skip, if set, reports whether a parameter is not loaded, because other processes have it.
	Skip func(p Parameter) bool
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
// loaded, "sum,oihw" for one of which their sum is, or "".
func (p Parameter) Transform() string { return strings.Join(p.options, ",") }

// Shape returns the shape of the parameter in the layout of diffusers, without the
// axis of which only the last slice or the sum is loaded; see [Param.Last].
func (p Parameter) Shape() []int {
	if p.frames != "" {
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
	opened := &files{}
	if o.Random {
		opened.numbers = drawNumbers(found) // of all, so that they do not depend on what is skipped
		defer opened.numbers.Free()
	}
	if o.Skip != nil {
		params, found = without(params, found, o.Skip)
	}
	if !o.Random {
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

// without returns parameters and their tensors without some.
func without(params []Parameter, found []Found, skip func(Parameter) bool) (loaded []Parameter, tensors []Found) {
	for i, p := range params {
		if !skip(p) {
			loaded, tensors = append(loaded, p), append(tensors, found[i])
		}
	}
	return loaded, tensors
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
	dtype := p.loaded(a.Dtype(), o.Dtype)
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

// loaded returns the dtype of the parameter in memory.
func (p Parameter) loaded(stored, dtype mlx.Dtype) mlx.Dtype {
	if p.frames == "sum" {
		return dtype
	}
	return smaller(stored, dtype)
}

// transform converts a tensor from the checkpoint's layout to the model's.
func (p Parameter) transform(a *mlx.Array) *mlx.Array {
	for _, option := range p.options {
		switch option {
		case "last": // see Param.Last
			n := a.Dim(2)
			a = a.Slice(2, n-1, n).Squeeze(2)
		case "sum": // see Param.Sum
			a = a.AsType(mlx.Float32).Sum(2).Squeeze(2)
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
		zeros := checkpoint.ZeroFinder{File: f}
		out.ends[f.Name] = func(t checkpoint.Tensor) error {
			if err := checkEnd(path, f.Header.DataOffset+t.End); err != nil {
				return err
			}
			return zeros.Check(t)
		}
	}
	return out, nil
}

// Decode returns a tensor that is not a parameter of a model, as [Load] decodes one: 8-bit floats may have a
// scale. read returns the bytes of a tensor in the file, or throws an error. Decode must run on the MLX thread.
func Decode(t checkpoint.Tensor, scale *checkpoint.Tensor, read func(checkpoint.Tensor) []byte) *mlx.Array {
	found := Found{Tensor: t, Scales: scale}
	f := files{arrays: map[string]*mlx.Array{}}
	for _, part := range found.inFile() {
		dtype, ok := DtypeOf(part.Dtype)
		if !ok {
			dtype = mlx.Uint8 // 8-bit floats
		}
		f.arrays[part.Name] = mlx.FromBytes(read(part), dtype, part.Shape...)
	}
	return f.plain(found)
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

// done checks that the files still had the tensor when it was read, and no part of it was lost before,
// and throws an error if not. It frees arrays that are not needed again.
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
