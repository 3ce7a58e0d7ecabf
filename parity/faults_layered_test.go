package parity

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// layeredFaults are faults of Qwen-Image-Layered that Qwen-Image cannot have.
var layeredFaults = []fault{
	{name: "layered: embedding of the other kind of image", dump: "qwen-layered",
		edit: weight("transformer", "time_text_embed.addition_t_embedding.weight", func(shape []int, v []float32) {
			slices.Reverse(v)
			for row := range shape[0] {
				slices.Reverse(v[row*shape[1] : (row+1)*shape[1]])
			}
		}),
		stage: "step 0", module: "transformer.time_text_embed.addition_t_embedding@0"},
	{name: "layered: image at the position of the first layer", dump: "qwen-layered",
		bug: onto("transformer.pos_embed@0", func(x *mlx.Array) *mlx.Array {
			n := x.Dim(0) / 4
			return mlx.Concat(0, x.Slice(0, 0, 3*n), x.Slice(0, 0, n))
		}),
		stage: "step 0", module: "transformer.pos_embed@0"},
	{name: "layered: alpha of the image ignored", dump: "qwen-layered",
		bug: onto("image.in", func(x *mlx.Array) *mlx.Array {
			opaque := mlx.Zeros(x.Dtype(), x.Dim(0), x.Dim(1), 1).Plus(255).AsType(x.Dtype())
			return mlx.Concat(2, x.Slice(2, 0, 3), opaque)
		}),
		stage: "encode", module: "image.in"},
}
