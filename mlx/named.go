package mlx

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Named compiles a function whose inputs and outputs have names instead of
// positions. In and Out are each *Array, []*Array, or a struct with exported fields
// of these types and such structs. Any array may be nil, for an absent input:
//
//	type inputs struct{ Latents, Guidance *mlx.Array }
//
//	forward := mlx.Named(mlx.Compile, func(in inputs) *mlx.Array {
//		return model.Forward(in.Latents, in.Guidance)
//	})
//	y := forward(inputs{Latents: x})
//
// compile is [Compile] or a function like it. It is called for the first inputs, and
// again for inputs of another structure: with other nil fields or other lengths of
// slices. The structure of the outputs may depend only on the structure of the inputs.
func Named[In, Out any](compile func(func([]*Array) []*Array) func([]*Array) []*Array, f func(In) Out) func(In) Out {
	type variant struct {
		run func([]*Array) []*Array
		out Out // without its arrays
	}
	variants := map[string]*variant{} // by the structure of the inputs
	return func(in In) Out {
		arrays, structure := flatten(in)
		v := variants[structure]
		if v == nil {
			v = &variant{}
			empty := fill(in, nil)
			v.run = compile(func(arrays []*Array) []*Array {
				out := f(fill(empty, arrays))
				v.out = fill(out, nil)
				results, _ := flatten(out)
				return results
			})
			variants[structure] = v
		}
		return fill(v.out, v.run(arrays))
	}
}

// placeholder stands for an array where only the structure matters.
var placeholder = new(Array)

// flatten returns the arrays of x that are not nil, in the order of its fields. structure
// describes which arrays are nil and the lengths of slices.
func flatten(x any) (arrays []*Array, structure string) {
	var b strings.Builder
	v := reflect.New(reflect.TypeOf(x)).Elem()
	v.Set(reflect.ValueOf(x))
	eachArray(v, func(n int) { fmt.Fprintf(&b, "%d:", n) }, func(a *Array) *Array {
		if a == nil {
			b.WriteByte('-')
			return nil
		}
		b.WriteByte('+')
		arrays = append(arrays, a)
		return a
	})
	return arrays, b.String()
}

// fill returns x with other arrays in the places of those that are not nil, or with
// placeholders if arrays is nil.
func fill[T any](x T, arrays []*Array) T {
	count := len(arrays)
	eachArray(reflect.ValueOf(&x).Elem(), func(int) {}, func(a *Array) *Array {
		switch {
		case a == nil:
			return nil
		case count == 0:
			return placeholder
		case len(arrays) == 0:
			raise("%d arrays for a %T with more", count, x)
		}
		a, arrays = arrays[0], arrays[1:]
		return a
	})
	if len(arrays) > 0 {
		raise("%d arrays for a %T with %d", count, x, count-len(arrays))
	}
	return x
}

// eachArray replaces the arrays in v by the results of f. Slices are copied, after
// their lengths have been passed to length.
func eachArray(v reflect.Value, length func(int), f func(*Array) *Array) {
	switch x := v.Addr().Interface().(type) {
	case **Array:
		*x = f(*x)
		return
	case *[]*Array:
		length(len(*x))
		*x = slices.Clone(*x)
		for i := range *x {
			(*x)[i] = f((*x)[i])
		}
		return
	}
	if v.Kind() != reflect.Struct {
		raise("%v in the inputs or outputs of a compiled function, expected *mlx.Array, []*mlx.Array or a struct of them", v.Type())
	}
	for i := range v.NumField() {
		if field := v.Type().Field(i); !field.IsExported() {
			raise("field %s of %v, an input or output of a compiled function, is not exported", field.Name, v.Type())
		}
		eachArray(v.Field(i), length, f)
	}
}
