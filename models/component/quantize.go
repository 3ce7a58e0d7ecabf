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

// Quantizations lists the names that [ParseQuantization] accepts.
var Quantizations = []string{"3", "4", "5", "6", "8", "mxfp4", "mxfp8", "nvfp4"}

// ParseQuantization parses the name of a quantization: a number of bits, or a
// floating-point format. The group is the number of weights in a row that share a
// scale; 0 stands for the default, which is 64 for a number of bits. A format has a
// fixed group size.
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

// QuantizationName returns the name of a quantization, as [ParseQuantization] accepts it.
func QuantizationName(q mlx.Quantization) string {
	if q.Mode == "affine" {
		return strconv.Itoa(q.Bits)
	}
	return q.Mode
}

// A QuantizationRule sets the minimum number of bits of some layers.
type QuantizationRule struct {
	// Layers is a pattern for module names, for path.Match: * matches any characters.
	Layers string
	// Least is the minimum number of bits: 8, or 16 for layers that are not quantized.
	Least int
}

// Fits reports whether the rule applies to the layer with a module name.
func (r QuantizationRule) Fits(layer string) bool {
	ok, _ := path.Match(r.Layers, layer) // module names have no slashes, so * matches dots too
	return ok
}

// LayerQuantization returns the quantization of a layer, given its module name and the
// number of its columns, in a model that is quantized to q. It is nil for a layer that
// is not quantized.
func (c Component) LayerQuantization(q mlx.Quantization, layer string, columns int) *mlx.Quantization {
	if c.Dense {
		return nil
	}
	for _, rule := range c.Class.Quantization {
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

// LayerQuantizer returns a function for nn.LoadOptions that gives the quantization of
// each of the component's parameters in a model that is quantized to q. It is nil if q
// is nil.
func (c Component) LayerQuantizer(q *mlx.Quantization) func(nn.Parameter) *mlx.Quantization {
	if q == nil {
		return nil
	}
	return func(p nn.Parameter) *mlx.Quantization {
		if p.Kind() == nn.OtherParam {
			return nil
		}
		return c.LayerQuantization(*q, Module(p.Name), p.Stored()[1])
	}
}

// Module returns the name of the module of a weight.
func Module(weight string) string { return strings.TrimSuffix(weight, ".weight") }

// relative returns ‖a-b‖/‖b‖.
func relative(a, b *mlx.Array) float64 { return math.Sqrt(SumOfSquares(a.Sub(b)) / SumOfSquares(b)) }

// SumOfSquares returns the sum of the squares of all elements.
func SumOfSquares(a *mlx.Array) (sum float64) {
	mlx.WithScope(func() {
		for _, row := range a.Square().Sum(-1).Floats() {
			sum += float64(row)
		}
	})
	return sum
}

// CheckQuantization returns an error if a quantization does not work on the device.
// Some versions of MLX fail for some modes and devices, and some of them compute wrong
// values without an error.
func CheckQuantization(q mlx.Quantization) (err error) {
	const rows, columns = 32, 256
	// the largest relative error for normally distributed weights, by bits
	most := map[int]float64{2: 0.5, 3: 0.25, 4: 0.16, 5: 0.07, 6: 0.04, 8: 0.05}[q.Bits]
	unsupported := func(format string, args ...any) error {
		return fmt.Errorf("%w: quantization %s on this device (%v): %w",
			errs.ErrUnsupported, QuantizationName(q), mlx.CurrentDevice(), fmt.Errorf(format, args...))
	}
	dtype := mlx.CurrentDevice().ComputeDtype() // CUDA compiles the kernels for it, which are used later
	failed := mlx.Try(func() {
		mlx.WithScope(func() {
			w := mlx.Normal(mlx.Key(1), dtype, rows, columns)
			x := mlx.Normal(mlx.Key(2), dtype, 1, columns)
			packed := w.Quantize(q)
			plain := packed.Dequantize(dtype)
			wide := func(a *mlx.Array) *mlx.Array { return a.AsType(mlx.Float32) }
			what, found := "dequantized weights", relative(wide(plain), wide(w))
			if found <= most && found > 0 {
				what, found = "products", relative(wide(packed.MatmulT(x)), wide(x).Matmul(wide(plain).T()))
				most = 2e-2
			}
			if !(found <= most) {
				err = unsupported("MLX %s computes wrong values: the relative error of %s is %.2g, expected at most %.2g",
					mlx.Version(), what, found, most)
			}
		})
	})
	if failed != nil {
		return unsupported("%w", failed)
	}
	return err
}
