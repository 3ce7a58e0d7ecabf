package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Shapes returns the shapes of the checkpoint's tensors that have the prefix, by
// diffusers' names. bare strips what else the names need to lose. For a quantized
// matrix it returns the shape before quantization, for a tensor that is stored as
// rows of a larger one nil.
func Shapes(ck *checkpoint.Checkpoint, t *Table, prefix string, bare func(name string) string) map[string][]int {
	shapes := map[string][]int{}
	for stored, tensor := range ck.Tensors {
		other, ok := strings.CutPrefix(stored, prefix)
		if !ok || IsIgnored(other) {
			continue
		}
		names, rule := t.Names(other)
		var err error
		for _, op := range t.transforms(tensor, rule) {
			if err == nil {
				tensor, err = tensor.Apply(checkpoint.Transform{Op: op})
			}
		}
		shape := tensor.Shape
		if module, ok := strings.CutSuffix(stored, ".weight"); ok && tensor.Dtype == "U32" && len(shape) == 2 {
			shape = unpacked(ck, tensor, module)
		}
		if len(names) == 0 { // not in diffusers, but infer may use the shape
			names = []string{other}
		}
		for _, name := range names {
			if name = bare(name); len(names) > 1 || err != nil {
				shapes[name] = nil
			} else {
				shapes[name] = shape
			}
		}
	}
	return shapes
}

// unpacked returns the shape of a matrix before quantization. Each 32-bit number
// has as many elements as fit, and each group, preferably of 64 elements, has a
// scale.
func unpacked(ck *checkpoint.Checkpoint, packed checkpoint.Tensor, module string) []int {
	scales, ok := ck.Tensors[module+".scales"]
	if !ok || len(scales.Shape) != 2 || scales.Shape[1] == 0 {
		return nil
	}
	columns, groups := packed.Shape[1], scales.Shape[1]
	bits := 0
	for _, f := range ck.Files {
		if n, err := strconv.Atoi(f.Header.Metadata["quantization_level"]); err == nil {
			bits = n
		}
	}
	for _, group := range []int{64, 32, 128} {
		groupBits := 32 * columns / groups
		n := groupBits / group // bits per element
		exact := groupBits%group == 0 && groupBits*groups == 32*columns
		if exact && (n == bits || bits == 0 && slices.Contains([]int{2, 3, 4, 5, 6, 8}, n)) {
			return []int{packed.Shape[0], groups * group}
		}
	}
	return nil
}

// A Config contains the values of a component's config.json that Infer found.
type Config struct {
	// Inferred are the values that follow from the shapes.
	Inferred map[string]any
	// Published are values of published models with the same shapes, to be used if
	// there is no better source.
	Published map[string]any
}

// Infer infers a component's config from the shapes of its tensors; see [Shapes].
// infer is the function of the component's class. It checks only the shapes that
// it uses; the Validate method of the config checks the result.
func Infer(class string, infer func(s *Sizes, inferred, published map[string]any), shapes map[string][]int) (Config, error) {
	s := &Sizes{shapes: shapes}
	c := Config{map[string]any{}, map[string]any{}}
	infer(s, c.Inferred, c.Published)
	if s.err != nil {
		return c, fmt.Errorf("config of a %s: %w", class, s.err)
	}
	return c, nil
}

// Sizes gives access to the shapes of a component's tensors, and keeps the first
// error.
type Sizes struct {
	shapes map[string][]int
	err    error
}

// Fail records an error, unless there is one already.
func (s *Sizes) Fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// Has reports whether there is a tensor.
func (s *Sizes) Has(name string) bool {
	_, ok := s.shapes[name]
	return ok
}

// Dim returns the size of an axis of a tensor. It fails if the tensor has fewer
// axes, and returns 1 then.
func (s *Sizes) Dim(name string, axis int) int {
	shape, ok := s.shapes[name]
	switch {
	case !ok:
		s.Fail("no tensor %s", name)
	case axis >= len(shape):
		s.Fail("tensor %s: expected %d axes or more, found shape %v", name, axis+1, shape)
	case shape[axis] < 1:
		s.Fail("tensor %s: expected elements, found shape %v", name, shape)
	default:
		return shape[axis]
	}
	return 1
}

// Divide returns size / by. It fails if size is not a multiple of by.
func (s *Sizes) Divide(what string, size, by int) int {
	if size%by != 0 {
		s.Fail("%s is %d, expected a multiple of %d", what, size, by)
	}
	return size / by
}

// Count returns the length of a list of modules, judging by the largest index.
func (s *Sizes) Count(list string) int {
	last := -1
	for name := range s.shapes {
		if rest, ok := strings.CutPrefix(name, list+"."); ok {
			number, _, _ := strings.Cut(rest, ".")
			if i, err := strconv.Atoi(number); err == nil {
				last = max(last, i)
			}
		}
	}
	if last >= len(s.shapes) {
		s.Fail("%s has index %d, but there are only %d tensors", list, last, len(s.shapes))
		return 0
	}
	return last + 1
}

// Heads returns the number of attention heads of a width, and the size of a head,
// which is that of the norm of the queries.
func (s *Sizes) Heads(width int, norm string) (heads, size int) {
	size = s.Dim(norm, 0)
	return s.Divide("the width", width, size), size
}

// Axes sets the rotary axes of published models, if heads have their size of 128.
func Axes(published map[string]any, key string, headDim int, dims ...int) {
	if headDim == 128 {
		published[key] = dims
	}
}
