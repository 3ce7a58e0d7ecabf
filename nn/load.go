package nn

import (
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/weights"
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

// Transform says what is done to the tensor before it is in memory, "" for
// nothing: oihw for a convolution's weight, which gets its channels last; last,oihw
// for a causal 3-D one's, of which the last slice in time is kept.
func (p Parameter) Transform() string { return strings.Join(p.options, ",") }

// Load fills the parameters of a model (a pointer to a struct) from a
// checkpoint and binds its modules to their paths. All that does not fit is
// reported together, in a [*MismatchError]; then nothing is loaded. It must run
// on the MLX thread.
func Load(model any, ck *weights.Checkpoint, o LoadOptions) error {
	Bind(model, o.Name, o.Points)
	params := Parameters(model)
	found, mismatch := match(params, ck, o)
	if mismatch != nil {
		return mismatch
	}

	var total, done int64
	byFile := map[string][]string{}
	uses := map[string]int{} // more than one where weights are tied
	for _, t := range found {
		total += t.End - t.Begin
		uses[t.Name]++
		byFile[t.File] = append(byFile[t.File], t.Name)
	}
	arrays := map[string]*mlx.Array{}
	ends := map[string]func(weights.Tensor) error{}
	for _, f := range ck.Files {
		names := byFile[f.Name]
		if len(names) == 0 {
			continue
		}
		p, err := f.Path()
		if err != nil {
			return err
		}
		tensors, err := mlx.LoadSafetensors(p, names)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		for name, a := range tensors {
			arrays[name] = a
		}
		ends[f.Name] = func(t weights.Tensor) error { return checkEnd(p, f.Header.DataOffset+t.End) }
	}
	for i, p := range params {
		t := found[i]
		p.Array = mlx.Scope(func() *mlx.Array {
			a := p.transform(arrays[t.Name], o.Dtype)
			evalTensor(a, t)
			if err := ends[t.File](t); err != nil {
				mlx.Throw(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, err))
			}
			return a
		})
		if uses[t.Name]--; uses[t.Name] == 0 {
			arrays[t.Name].Free()
		}
		mlx.Keep(p.Array)
		mlx.StopPoint()
		if done += t.End - t.Begin; o.Progress != nil {
			o.Progress(done, total)
		}
	}
	return nil
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

// evalTensor reads a tensor from its file. A read error is MLX's, so the
// tensor's name is put to it.
func evalTensor(a *mlx.Array, t weights.Tensor) {
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(*mlx.Error); ok {
				mlx.Throw(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, e))
			}
			panic(p)
		}
	}()
	mlx.Eval(a)
}

// transform takes a tensor from the checkpoint's form to the model's.
func (p Parameter) transform(a *mlx.Array, dtype mlx.Dtype) *mlx.Array {
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
	if a.Dtype() == mlx.Float32 || dtype != mlx.Float32 { // halves are smaller than float32 alone
		a = a.AsType(dtype)
	}
	return a.Contiguous()
}

// Match finds the tensor of every one of a model's parameters, without loading
// any: the zero Tensor where there is none. The error, nil for none, is about
// all that does not fit. It needs no MLX.
func Match(model any, ck *weights.Checkpoint, o LoadOptions) ([]weights.Tensor, *MismatchError) {
	return match(Parameters(model), ck, o)
}

func match(params []Parameter, ck *weights.Checkpoint, o LoadOptions) ([]weights.Tensor, *MismatchError) {
	mismatch := &MismatchError{Name: o.Name, Dir: ck.Dir}
	found := make([]weights.Tensor, len(params))
	used := map[string]bool{}
	for i, p := range params {
		t, ok := find(ck, p.Name, o.Prefixes)
		if !ok && p.other != "" {
			t, ok = find(ck, p.other, o.Prefixes)
		}
		if !ok {
			mismatch.Missing = append(mismatch.Missing, Misfit{p.Name, fmt.Sprintf(", expected %v", p.shape)})
			continue
		}
		used[t.Name] = true
		if !slices.Equal(t.Shape, p.shape) {
			mismatch.Misshapen = append(mismatch.Misshapen, Misfit{t.Name, fmt.Sprintf(", expected %v, found %v in %s", p.shape, t.Shape, t.File)})
		}
		if !slices.Contains([]weights.Dtype{"F32", "F16", "BF16"}, t.Dtype) {
			mismatch.Mistyped = append(mismatch.Mistyped, Misfit{t.Name, fmt.Sprintf(", expected F32, F16 or BF16, found %s in %s", t.Dtype, t.File)})
		}
		found[i] = t
	}
	for name, t := range ck.Tensors {
		if !used[name] && !o.ignores(name) {
			mismatch.Unexpected = append(mismatch.Unexpected, Misfit{name, fmt.Sprintf(" %v in %s", t.Shape, t.File)})
		}
	}
	slices.SortFunc(mismatch.Unexpected, func(a, b Misfit) int { return strings.Compare(a.Name, b.Name) })
	if mismatch.empty() {
		return found, nil
	}
	return found, mismatch
}

// find is the tensor of a name, or of the name behind one of the prefixes.
func find(ck *weights.Checkpoint, name string, prefixes []string) (weights.Tensor, bool) {
	t, ok := ck.Tensors[name]
	for _, prefix := range prefixes {
		if !ok {
			t, ok = ck.Tensors[prefix+name]
		}
	}
	return t, ok
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
		for _, line := range group.lines {
			fmt.Fprintf(&b, "\n\t%s: %s", group.what, line)
		}
	}
	return b.String()
}

// Bind tells the modules of a model their paths, under name, and where to ask
// for a hook.
func Bind(model any, name string, points *hooks.Points) {
	walk(reflect.ValueOf(model), at{path: name}, func(a at, m *Module) { m.bind(a.path, points) }, nil)
}

// Parameters lists what a model (a pointer to a struct) has of parameters, in
// the order of its fields.
func Parameters(model any) (params []Parameter) {
	walk(reflect.ValueOf(model), at{}, nil, func(a at, p *Param, options []string) {
		if p.last {
			options = append([]string{"last"}, options...)
		}
		if p.shape != nil {
			params = append(params, Parameter{p, a.path, a.field, options})
		}
	})
	return params
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

// walk visits the modules and parameters under v, depth first, with their
// places.
func walk(v reflect.Value, a at, module func(at, *Module), param func(at, *Param, []string)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			walk(v.Elem(), a, module, param)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), a.element(strconv.Itoa(i), strconv.Itoa(i)), module, param)
		}
	case reflect.Map: // torch.nn.ModuleDict
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			walk(v.MapIndex(key), a.element(key.String(), strconv.Quote(key.String())), module, param)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Type == moduleType && module != nil {
				module(a, v.Field(i).Addr().Interface().(*Module))
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
				walk(v.Field(i), child, module, param)
			} else if param != nil {
				param(child, v.Field(i).Addr().Interface().(*Param), options[1:])
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
