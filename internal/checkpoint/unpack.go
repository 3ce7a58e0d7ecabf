package checkpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"

	"github.com/gomflux/gomflux/internal/hadamard"
)

// FourBits has the values of 4-bit floats: a sign, two bits of exponent and one of
// fraction (OCP Microscaling Formats, E2M1).
var FourBits = [16]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// PowerOfTwo returns the value of a scale of MXFP8, 8 bits of exponent (E8M0). As in comfy-kitchen
// the smallest one is 0.
func PowerOfTwo(b byte) float32 { return math.Float32frombits(uint32(b) << 23) }

// unpacked is [Checkpoint.Parts] for a packed tensor. It yields whole rows in F32, dequantized.
func (c *Checkpoint) unpacked(ctx context.Context, t Tensor, step int) iter.Seq2[*Array, error] {
	return func(yield func(*Array, error) bool) {
		u, err := c.newUnpacker(t.Packing)
		shape := t.Shape
		if t.Stored != nil {
			shape = t.Stored
		}
		few := max(1, step/max(1, shape[1]))
		whole := Tensor{Shape: []int{shape[0]}, End: int64(shape[0]), Transforms: t.Transforms}
		for _, s := range spans(whole) {
			for row := int(s.begin); row < int(s.end) && err == nil; row += few {
				n := min(few, int(s.end)-row)
				if err = context.Cause(ctx); err != nil {
					break
				}
				var values []float32
				if values, err = u.rows(row, n); err != nil {
					break
				}
				part, _ := FromFloat32(t.Name, []int{len(values)}, values)
				if !yield(part, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(nil, fmt.Errorf("%s: tensor %q: %w", t.File, t.Name, err))
		}
	}
}

// An unpacker dequantizes rows of a matrix.
type unpacker struct {
	*Packing
	file   *File
	width  int // bytes of a row
	scales []float32
	global float32
}

func (c *Checkpoint) newUnpacker(p *Packing) (*unpacker, error) {
	u := &unpacker{Packing: p, file: c.fileOf(p.Weight), width: p.Weight.Shape[1], global: 1}
	data, err := c.Bytes(p.Scale)
	if err != nil {
		return u, err
	}
	u.scales = make([]float32, p.Scale.Len())
	for i := range u.scales {
		switch {
		case p.Format == PackedMXFP8:
			u.scales[i] = PowerOfTwo(data[i])
		case p.Format == PackedNVFP4:
			u.scales[i] = EightBits(F8E4M3)[data[i]]
		}
	}
	if p.Block() == 0 {
		decode(p.Scale.Dtype, u.scales, data)
	}
	if p.Global != nil {
		if data, err = c.Bytes(*p.Global); err == nil {
			u.global = math.Float32frombits(binary.LittleEndian.Uint32(data))
		}
	}
	return u, err
}

// rows returns the elements of n rows.
func (u *unpacker) rows(row, n int) ([]float32, error) {
	data := make([]byte, n*u.width)
	if err := u.file.read(data, u.Weight.Begin+int64(row)*int64(u.width)); err != nil {
		return nil, err
	}
	var out []float32
	for i := range n {
		out = u.row(out, data[i*u.width:(i+1)*u.width], row+i)
	}
	return out, nil
}

// row appends the elements of a row with these bytes.
func (u *unpacker) row(out []float32, data []byte, row int) []float32 {
	begin := len(out)
	switch u.Format {
	case PackedInt4, PackedInt8:
		scale := u.scales[min(row, len(u.scales)-1)]
		for _, b := range data {
			if u.Format == PackedInt8 {
				out = append(out, float32(int8(b))*scale)
			} else {
				out = append(out, float32(int8(b<<4)>>4)*scale, float32(int8(b)>>4)*scale)
			}
		}
		hadamard.Multiply(out[begin:], u.Rotation)
	case PackedMXFP8:
		for i, b := range data {
			out = append(out, EightBits(F8E4M3)[b]*u.scale(row, i/32, len(data)/32))
		}
	case PackedNVFP4:
		for i, b := range data {
			scale := u.global * u.scale(row, i/8, len(data)/8)
			out = append(out, float32(FourBits[b>>4])*scale, float32(FourBits[b&15])*scale)
		}
	}
	return out
}

// scale returns an element of a matrix of scales that is stored in tiles of 128x4, in each of which
// the rows i, i+32, i+64 and i+96 are next to each other (NVIDIA's layout of block scaling factors).
func (u *unpacker) scale(row, column, columns int) float32 {
	tile := row/128*((columns+3)/4) + column/4
	return u.scales[512*tile+row%32*16+row%128/32*4+column%4]
}
