package main

import (
	"math"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// cmdPlant changes a tensor in a safetensors file: plant FILE TENSOR HOW, where
// HOW is zero, constant, nan, drop, reverse (its shape), times=N, cast=DTYPE or
// name=NEW.
func cmdPlant(ts *testscript.TestScript, _ bool, args []string) {
	path, name, how := ts.MkAbs(args[0]), args[1], args[2]
	f, err := checkpoint.OpenArrays(path)
	ts.Check(err)
	var list []*checkpoint.Array
	for _, i := range f.Tensors() {
		x, err := f.Read(i.Name)
		ts.Check(err)
		list = append(list, x)
	}
	ts.Check(f.Close())
	at := slices.IndexFunc(list, func(x *checkpoint.Array) bool { return x.Name == name })
	if at < 0 {
		ts.Fatalf("%s has no tensor %s", args[0], name)
	}
	x := list[at]
	values := x.Float32s()
	how, value, _ := strings.Cut(how, "=")
	switch how {
	case "zero":
		clear(values)
	case "constant":
		for i := range values {
			values[i] = 0.5
		}
	case "nan":
		values[0] = float32(math.NaN())
	case "times":
		for i := range values {
			values[i] *= float32(number(ts, value))
		}
	case "drop":
		list = slices.Delete(list, at, at+1)
	case "reverse":
		slices.Reverse(x.Shape)
	case "cast":
		clear(values)
		x.Dtype, err = checkpoint.ParseDtype(value)
		ts.Check(err)
	case "name":
		x.Name = strings.NewReplacer(`\n`, "\n", `\e`, "\x1b").Replace(value)
	default:
		ts.Fatalf("unknown change %s", how)
	}
	changed, err := checkpoint.FromFloat32(x.Name, x.Shape, values)
	ts.Check(err)
	changed, err = changed.Cast(x.Dtype)
	ts.Check(err)
	x.Data = changed.Data
	ts.Check(checkpoint.WriteFile(path, list, nil))
}
