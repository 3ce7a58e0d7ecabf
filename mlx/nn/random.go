package nn

import (
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// RandomCheckpoint describes the checkpoint of a model as if it were in files: a tensor
// of a dtype for every parameter. [Load] with LoadOptions.Random draws its tensors.
func RandomCheckpoint(model any, dtype checkpoint.Dtype) *checkpoint.Checkpoint {
	ck := &checkpoint.Checkpoint{Dir: "random weights", Tensors: map[string]checkpoint.Tensor{}}
	for _, p := range Parameters(model) {
		ck.Tensors[p.Name] = checkpoint.Tensor{Name: p.Name, Dtype: dtype, Shape: p.Stored(), File: ck.Dir}
	}
	return ck
}

// draw returns a tensor of random numbers, the same ones for the same name and shape.
// Weights are so small that a layer's output is about as large as its input; those of
// norms, and variances, are about 1.
func draw(t checkpoint.Tensor) *mlx.Array {
	const spread = 0.02
	mean, deviation := 0.0, spread
	last := t.Name[strings.LastIndexByte(t.Name, '.')+1:]
	switch {
	case last == "bias" || last == "running_mean":
	case last == "gamma" || len(t.Shape) < 2: // of norms; running_var
		mean = 1
	default:
		deviation = 1 / math.Sqrt(float64(t.Len()/t.Shape[0]))
	}
	dtype, ok := DtypeOf(t.Dtype)
	if !ok {
		panic("nn: random weights in " + string(t.Dtype))
	}
	name := fnv.New64a()
	name.Write([]byte(t.Name))
	const most = 1 << 24 // numbers at once, which take some times 4 bytes
	var parts []*mlx.Array
	for n := t.Len(); n > 0; n -= most {
		part := mlx.Scope(func() *mlx.Array {
			x := mlx.Normal(mlx.Key(name.Sum64()+uint64(len(parts))), mlx.Float32, min(n, most))
			return x.Times(deviation).Plus(mean).AsType(dtype)
		})
		mlx.Eval(part)
		mlx.StopPoint()
		parts = append(parts, part)
	}
	if len(parts) == 1 {
		return parts[0].Reshape(slices.Clone(t.Shape)...)
	}
	return mlx.Concat(0, parts...).Reshape(slices.Clone(t.Shape)...)
}
