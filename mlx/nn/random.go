package nn

import (
	"hash/fnv"
	"math"
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

// period is how many numbers are drawn for a component, unless all its tensors are smaller.
// Larger tensors repeat them, since the CPU would need minutes to draw a billion. It is a prime
// number, so that the rows of a matrix differ.
const period = 1<<22 + 15

// drawNumbers returns numbers of the standard normal distribution for tensors, which the caller
// frees.
func drawNumbers(found []Found) *mlx.Array {
	n := 1
	for _, f := range found {
		n = max(n, f.Len())
	}
	x := mlx.Scope(func() *mlx.Array { return mlx.Normal(mlx.Key(0), mlx.Float32, min(n, period)) })
	mlx.Eval(x)
	mlx.Keep(x)
	return x
}

// randomTensor returns a tensor of random numbers, the same ones for the same name and shape.
// Weights are so small that a layer's output is about as large as its input; those of norms, and
// variances, are about 1.
func randomTensor(numbers *mlx.Array, t checkpoint.Tensor) *mlx.Array {
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
	scale := func(x *mlx.Array) *mlx.Array { return x.Times(deviation).Plus(mean).AsType(dtype) }
	x, size := numbers, numbers.Dim(0)
	small := t.Len() < size
	if !small { // it repeats the numbers, of which there are fewer
		x = scale(x)
	}
	at := int(name.Sum64() % uint64(size)) // where the tensor's numbers begin
	var parts []*mlx.Array
	for n := t.Len(); n > 0; {
		end := min(size, at+n)
		parts = append(parts, x.Slice(0, at, end))
		n, at = n-(end-at), 0
	}
	x = mlx.Concat(0, parts...)
	if small {
		x = scale(x)
	}
	return x.Reshape(t.Shape...)
}
