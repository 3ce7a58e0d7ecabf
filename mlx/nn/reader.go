package nn

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// A Reader reads a checkpoint's tensors one after the other, for what is no model:
// they stay in the form of diffusers. It belongs to the MLX thread.
type Reader struct{ files *files }

// NewReader opens the files of what is to be read, each as often as it is listed.
func NewReader(ck *checkpoint.Checkpoint, found []Found) (*Reader, error) {
	files, err := openFiles(ck, found)
	if err != nil {
		return nil, err
	}
	return &Reader{files}, nil
}

// Packed reads a quantized matrix as it is stored.
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

// Plain reads a tensor: in the dtype that it is stored in, or, if it is quantized,
// in float32, as 8-bit floats are in bfloat16.
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
