package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Shapes are those of a checkpoint's tensors that a table names with some prefix:
// under diffusers' names, as bare has them, and of quantized matrices those that they are
// packed from. A tensor that is stored as rows of a larger one has nil.
func Shapes(ck *checkpoint.Checkpoint, t *Table, prefix string, bare func(name string) string) map[string][]int {
	shapes := map[string][]int{}
	for stored, tensor := range ck.Tensors {
		other, ok := strings.CutPrefix(stored, prefix)
		if !ok || isMark(other) {
			continue
		}
		names, rule := t.Names(other)
		forms := rule.Forms
		if t.ChannelsLast && len(tensor.Shape) > 3 && len(forms) == 0 {
			forms = []checkpoint.FormOp{checkpoint.FormChannelsFirst}
		}
		var err error
		for _, op := range forms {
			if err == nil {
				tensor, err = tensor.In(checkpoint.Form{Op: op})
			}
		}
		shape := tensor.Shape
		if module, ok := strings.CutSuffix(stored, ".weight"); ok && tensor.Dtype == "U32" && len(shape) == 2 {
			shape = unpacked(ck, tensor, module)
		}
		if len(names) == 0 { // what diffusers does not have may tell something too
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

// unpacked is the shape of a matrix that is quantized: a number of 32 bits holds
// as many as fit, and a group, of 64 if nothing else is known, has a scale.
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
		per := 32 * columns / groups // of a group, times its size
		if n := per / group; per%group == 0 && per*groups == 32*columns && (n == bits || bits == 0 && slices.Contains([]int{2, 3, 4, 5, 6, 8}, n)) {
			return []int{packed.Shape[0], groups * group}
		}
	}
	return nil
}

// A Config is what can be said of a component's config.json by the shapes of its
// tensors.
type Config struct {
	// Told are the keys whose values follow from the shapes.
	Told map[string]any
	// Published are further ones, with the values of the published models of such
	// sizes, for where nothing says better.
	Published map[string]any
}

// Infer makes a component's config of the shapes of its tensors; see [Shapes].
// infer is what is particular to its class: it judges what it needs of the shapes,
// and leaves it to the config's own Validate to judge the result.
func Infer(class string, infer func(s *Sizes, told, published map[string]any), shapes map[string][]int) (Config, error) {
	s := &Sizes{shapes: shapes}
	c := Config{map[string]any{}, map[string]any{}}
	infer(s, c.Told, c.Published)
	if s.err != nil {
		return c, fmt.Errorf("config of a %s: %w", class, s.err)
	}
	return c, nil
}

// Sizes reads the shapes of a component's tensors, and keeps the first error.
type Sizes struct {
	shapes map[string][]int
	err    error
}

func (s *Sizes) Fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *Sizes) Has(name string) bool {
	_, ok := s.shapes[name]
	return ok
}

// Dim is an axis of a tensor that has at least so many, 1 where there is an error.
func (s *Sizes) Dim(name string, axis int) int {
	shape, ok := s.shapes[name]
	switch {
	case !ok:
		s.Fail("there is no tensor %s", name)
	case axis >= len(shape):
		s.Fail("tensor %s: expected %d axes or more, found shape %v", name, axis+1, shape)
	case shape[axis] < 1:
		s.Fail("tensor %s: is empty, of shape %v", name, shape)
	default:
		return shape[axis]
	}
	return 1
}

// Over divides what must be a multiple.
func (s *Sizes) Over(what string, size, by int) int {
	if size%by != 0 {
		s.Fail("%s is %d, expected a multiple of %d", what, size, by)
	}
	return size / by
}

// Count is how many modules a list has, by the largest number of one.
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
		s.Fail("%s has a module of number %d, and there are %d tensors in all", list, last, len(s.shapes))
		return 0
	}
	return last + 1
}

// Heads are those of a width by the size of one, which is that of the norm of its
// queries.
func (s *Sizes) Heads(width int, norm string) (heads, size int) {
	size = s.Dim(norm, 0)
	return s.Over("the width", width, size), size
}

// Axes are the rotary axes of published models, whose heads are of 128.
func Axes(published map[string]any, key string, headDim int, dims ...int) {
	if headDim == 128 {
		published[key] = dims
	}
}
