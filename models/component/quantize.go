package component

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/errs"
)

// Quantizations are the names that [ParseQuantization] takes.
var Quantizations = []string{"3", "4", "5", "6", "8", "mxfp4", "mxfp8", "nvfp4"}

// ParseQuantization reads what a model is to be quantized to: a number of bits, or
// a floating-point format. The group is how many weights of a row share a scale,
// 0 for the usual number: 64 for bits, and no other than its own for a format.
func ParseQuantization(name string, group int) (*mlx.Quantization, error) {
	for _, q := range mlx.Blocks {
		if name != q.Mode {
			continue
		}
		if group != 0 && group != q.Group {
			return nil, errs.Requestf("group size %d: %s has groups of %d", group, name, q.Group)
		}
		return &q, nil
	}
	if !slices.Contains(Quantizations, name) {
		return nil, errs.Requestf("quantization %q: expected %s", name, strings.Join(Quantizations, ", "))
	}
	bits, err := strconv.Atoi(name)
	if err != nil {
		return nil, err
	}
	if group == 0 {
		group = defaultGroup
	}
	if !slices.Contains([]int{32, 64, 128}, group) {
		return nil, errs.Requestf("group size %d: expected 32, 64 or 128", group)
	}
	return &mlx.Quantization{Mode: "affine", Bits: bits, Group: group}, nil
}

const defaultGroup = 64

// QuantizationName is the name that [ParseQuantization] takes.
func QuantizationName(q mlx.Quantization) string {
	if q.Mode == "affine" {
		return strconv.Itoa(q.Bits)
	}
	return q.Mode
}

// A QuantizationRule says how many bits layers keep at least: 8, or 16 for those
// that are not quantized. Layers is a pattern (path.Match) of a module's name, in
// which * stands for anything.
type QuantizationRule struct {
	Layers string
	Least  int
}

// Fits reports whether the rule is about a layer, by the name of its module.
func (r QuantizationRule) Fits(layer string) bool {
	ok, _ := path.Match(r.Layers, layer) // whose name has no slashes, so that * goes over dots
	return ok
}

// LayerQuantization is how a layer is quantized, by the name of its module and the
// number of its columns, where a model is quantized to q; nil for a layer that is
// not.
func (c *Class) LayerQuantization(q mlx.Quantization, layer string, columns int) *mlx.Quantization {
	for _, rule := range c.Quantization {
		if !rule.Fits(layer) {
			continue
		}
		switch {
		case rule.Least > 8:
			return nil
		case rule.Least > q.Bits:
			if q.Mode != "affine" {
				q.Group = defaultGroup
			}
			q.Mode, q.Bits = "affine", rule.Least
		}
		break
	}
	for columns%q.Group != 0 {
		if q.Mode != "affine" || q.Group <= 32 {
			return nil
		}
		q.Group /= 2
	}
	return &q
}

// LayerQuantizer returns how the component's parameters are quantized where the
// model is to q, as nn.LoadOptions wants it; nil where it is not.
func (c Component) LayerQuantizer(q *mlx.Quantization) func(nn.Parameter) *mlx.Quantization {
	if q == nil {
		return nil
	}
	return func(p nn.Parameter) *mlx.Quantization {
		if p.Kind() == nn.OtherParam {
			return nil
		}
		return c.Class.LayerQuantization(*q, Module(p.Name), p.Stored()[1])
	}
}

// Module is the name of the module that a weight is of.
func Module(weight string) string { return strings.TrimSuffix(weight, ".weight") }

// relative is ‖a-b‖/‖b‖.
func relative(a, b *mlx.Array) float64 { return math.Sqrt(SumOfSquares(a.Sub(b)) / SumOfSquares(b)) }

// SumOfSquares is the sum of all elements' squares.
func SumOfSquares(a *mlx.Array) (sum float64) {
	mlx.Scope(func() *mlx.Array {
		for _, row := range a.Square().Sum(-1).Floats() {
			sum += float64(row)
		}
		return nil
	})
	return sum
}

// CheckQuantization makes sure that the device does a quantization as it should:
// some versions of MLX fail at some modes on some devices, and not all of them
// say so.
func CheckQuantization(q mlx.Quantization) (err error) {
	const rows, columns = 32, 256
	most := map[int]float64{2: 0.5, 3: 0.25, 4: 0.16, 5: 0.07, 6: 0.04, 8: 0.05}[q.Bits] // of normal weights
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(*mlx.Error)
			if !ok {
				panic(p)
			}
			err = fmt.Errorf("%w: quantization %s on this device (%v): %w", errs.ErrUnsupported, QuantizationName(q), mlx.CurrentDevice(), e)
		}
	}()
	dtype := mlx.CurrentDevice().ComputeDtype() // whose kernels, which CUDA compiles now, are used later
	mlx.Scope(func() *mlx.Array {
		w := mlx.Normal(mlx.Key(1), dtype, rows, columns)
		x := mlx.Normal(mlx.Key(2), dtype, 1, columns)
		packed := w.Quantize(q)
		plain := packed.Dequantize(dtype)
		wide := func(a *mlx.Array) *mlx.Array { return a.AsType(mlx.Float32) }
		what, found := "unpacked weights", relative(wide(plain), wide(w))
		if found <= most && found > 0 {
			what, found = "products", relative(wide(packed.MatmulT(x)), wide(x).Matmul(wide(plain).T()))
			most = 2e-2
		}
		if !(found <= most) {
			err = fmt.Errorf("%w: quantization %s on this device (%v): MLX %s makes %s that are off by %.2g", errs.ErrUnsupported, QuantizationName(q), mlx.CurrentDevice(), mlx.Version(), what, found)
		}
		return nil
	})
	return err
}
