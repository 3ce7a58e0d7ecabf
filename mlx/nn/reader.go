package nn

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// A Reader reads tensors of a checkpoint one after the other, without a model: they
// stay in the layout of diffusers. It belongs to the MLX thread.
type Reader struct{ files *files }

// NewReader opens the files of the tensors in found, which may be read once for each
// time they are listed.
func NewReader(ck *checkpoint.Checkpoint, found []Found) (*Reader, error) {
	files, err := openFiles(ck, found)
	if err != nil {
		return nil, err
	}
	return &Reader{files}, nil
}

// Packed reads a quantized matrix without dequantizing it.
func (r *Reader) Packed(f Found) *mlx.Quantized {
	defer naming(f.Tensor)
	arrays := mlx.Scopes(func() []*mlx.Array {
		arrays := r.files.packed(f)
		mlx.Eval(arrays...)
		return arrays
	})
	r.files.done(f)
	return f.Quantized.Of(arrays)
}

// Plain reads a tensor in the dtype that it is stored in. Quantized tensors are
// dequantized to float32, and 8-bit floats become bfloat16.
func (r *Reader) Plain(f Found) *mlx.Array {
	if f.Quantized != nil {
		return mlx.Scope(func() *mlx.Array { return r.Packed(f).Dequantize(mlx.Float32) })
	}
	defer naming(f.Tensor)
	a := mlx.Scope(func() *mlx.Array {
		a := r.files.plain(f).Contiguous()
		mlx.Eval(a)
		return a
	})
	r.files.done(f)
	return a
}
