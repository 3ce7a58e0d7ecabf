package nn

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hadamard"
	"github.com/gomflux/gomflux/mlx"
)

// unpack returns the rows of a packed matrix that its transforms select, dequantized in float32 and
// rounded to bfloat16, in which ComfyUI computes with it.
func (f *files) unpack(t checkpoint.Tensor) *mlx.Array {
	p := t.Packing
	packed, scale := f.arrays[p.Weight.Name], f.arrays[p.Scale.Name]
	rows := p.Weight.Shape[0]
	if block := p.Block(); block > 0 {
		scale = untile(scale, rows, p.Columns()/block)
	} else if scale.Size() == rows {
		scale = scale.Reshape(rows, 1)
	} else {
		scale = scale.Reshape(1, 1)
	}
	packed = selectRows(packed, t.Transforms)
	if scale.Dim(0) == rows {
		scale = selectRows(scale, t.Transforms)
	}
	if p.Rotation > 0 {
		bits := map[string]int{checkpoint.PackedInt4: 4, checkpoint.PackedInt8: 8}[p.Format]
		if x := packed.UnrotateOnHost(scale, bits, p.Rotation); x != nil {
			return x
		}
	}
	var x *mlx.Array
	switch p.Format {
	case checkpoint.PackedInt4:
		x = nibbles(packed.View(mlx.Uint8), false)
		negative := mlx.Where(x.Less(number(8)), number(0), number(16)).AsType(mlx.Float32)
		x = unrotate(x.AsType(mlx.Float32).Sub(negative).Mul(scale.AsType(mlx.Float32)), p.Rotation)
	case checkpoint.PackedInt8:
		x = unrotate(packed.AsType(mlx.Float32).Mul(scale.AsType(mlx.Float32)), p.Rotation)
	case checkpoint.PackedMXFP8:
		// a number of 8 bits of exponent has them where float32 has its exponent
		scale = scale.AsType(mlx.Uint32).Mul(mlx.Scalar(1<<23, mlx.Uint32)).View(mlx.Float32)
		x = scaleBlocks(packed.FromFP8(mlx.Float32), scale)
	case checkpoint.PackedNVFP4:
		scale = scale.FromFP8(mlx.Float32).Mul(f.arrays[p.Global.Name].Reshape())
		x = scaleBlocks(fourBits(packed), scale)
	default:
		panic("nn: unknown packing " + p.Format)
	}
	return x.AsType(mlx.BFloat16)
}

// scaleBlocks multiplies each row of x by the scales of its blocks.
func scaleBlocks(x, scale *mlx.Array) *mlx.Array {
	rows, columns, blocks := x.Dim(0), x.Dim(1), scale.Dim(1)
	return x.Reshape(rows, blocks, columns/blocks).Mul(scale.ExpandDims(2)).Reshape(rows, columns)
}

// untile returns a matrix that is stored in tiles of 128x4, in each of which the rows i, i+32, i+64
// and i+96 are next to each other.
func untile(a *mlx.Array, rows, columns int) *mlx.Array {
	down, across := (rows+127)/128, (columns+3)/4
	a = a.Reshape(down, across, 32, 4, 4).Transpose(0, 3, 2, 1, 4).Reshape(128*down, 4*across)
	return a.Slice(0, 0, rows).Slice(1, 0, columns)
}

func number(v float64) *mlx.Array { return mlx.Scalar(v, mlx.Uint8) }

// nibbles returns the halves of bytes [rows, n] as bytes [rows, 2n]. Those with the higher or those
// with the lower bits come first.
func nibbles(a *mlx.Array, highFirst bool) *mlx.Array {
	first, second := a.FloorDivide(number(16)), a.Remainder(number(16))
	if !highFirst {
		first, second = second, first
	}
	return mlx.Concat(2, first.ExpandDims(2), second.ExpandDims(2)).Reshape(a.Dim(0), 2*a.Dim(1))
}

// fourBits returns the 4-bit floats (E2M1) in bytes [rows, n] as float32 [rows, 2n]. The bits of such
// a number are, two places further up and apart from the sign, those of an 8-bit float (E4M3) that is
// 1/64 of it.
func fourBits(a *mlx.Array) *mlx.Array {
	halves := nibbles(a, true)
	sign := mlx.Where(halves.Less(number(8)), number(0), number(128-4*8))
	return halves.Mul(number(4)).Add(sign).FromFP8(mlx.Float32).Times(64)
}

// unrotate multiplies each group of a row by the Hadamard matrix of its size, which is its own
// inverse. It is one product of matrices, because GPUs compute that as fast as they read the rows.
func unrotate(x *mlx.Array, group int) *mlx.Array {
	if group == 0 {
		return x
	}
	shape := x.Shape()
	return x.Reshape(-1, group).Matmul(mlx.FromFloat32(hadamard.Matrix(group), group, group)).Reshape(shape...)
}
