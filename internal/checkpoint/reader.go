package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/oserr"
)

// PartLen is the default number of elements to read at a time.
const PartLen = 1 << 18

// fileOf returns the checkpoint's file that has a tensor.
func (c *Checkpoint) fileOf(t Tensor) *File {
	return c.Files[slices.IndexFunc(c.Files, func(f *File) bool { return f.Name == t.File })]
}

// Parts yields the elements of a tensor, step at a time, with the rows in the order
// of its transforms. The dtype must have whole bytes; 8-bit floats are converted
// to float32, and packed matrices are dequantized to float32, in whole rows. A part is
// valid until the next iteration. Several goroutines may read at once.
func (c *Checkpoint) Parts(ctx context.Context, t Tensor, step int) iter.Seq2[*Array, error] {
	if t.Packing != nil {
		return c.unpacked(ctx, t, step)
	}
	return func(yield func(*Array, error) bool) {
		f := c.fileOf(t)
		elements := stored(f.f, f.Header.DataOffset, t)
		size, left := t.Dtype.Size(), t.Bytes()
		buffer := make([]byte, min(int64(step)*int64(size), left))
		for ; left > 0; left -= int64(len(buffer)) {
			buffer = buffer[:min(int64(len(buffer)), left)]
			err := context.Cause(ctx)
			if err == nil {
				if _, err = io.ReadFull(elements, buffer); err == io.EOF || err == io.ErrUnexpectedEOF {
					err = errors.New("the file was truncated while it was read")
				}
			}
			if err != nil {
				yield(nil, fmt.Errorf("%s: tensor %q: %w", t.File, t.Name, err))
				return
			}
			part := &Array{Name: t.Name, Dtype: t.Dtype, Shape: []int{len(buffer) / size}, Data: buffer}
			if values := EightBits(t.Dtype); values != nil {
				part.Dtype, part.Data = F32, widen(buffer, values)
			}
			if !yield(part, nil) {
				return
			}
		}
	}
}

// Values yields the elements of a transformed tensor as numbers, step at a time.
// If [Tensor.InRows] returns true, step must be a multiple of a row. The slice is
// valid until the next iteration.
func (c *Checkpoint) Values(ctx context.Context, t Tensor, step int) iter.Seq2[[]float64, error] {
	return func(yield func([]float64, error) bool) {
		for part, err := range c.Parts(ctx, t, step) {
			var values []float64
			if err == nil {
				values = channelsFirst(t, part.Float64s())
			}
			if !yield(values, err) {
				return
			}
		}
	}
}

// widen converts 8-bit floats to float32.
func widen(data []byte, values *[256]float32) []byte {
	wide := make([]byte, 0, 4*len(data))
	for _, b := range data {
		wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(values[b]))
	}
	return wide
}

// Bytes reads the bytes of a tensor as they are stored.
func (c *Checkpoint) Bytes(t Tensor) ([]byte, error) {
	data := make([]byte, t.End-t.Begin)
	return data, c.fileOf(t).read(data, t.Begin)
}

// read fills p with the bytes from a place of the data section on.
func (f *File) read(p []byte, at int64) error { return readAt(f.f, p, f.Header.DataOffset+at) }

// readAt fills p with the bytes from a place on.
func readAt(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	return oserr.NoEOF(err)
}

// stored returns a reader of a tensor's bytes in a safetensors file whose data
// section begins at offset. The rows come in the order of the tensor's transforms.
func stored(f io.ReaderAt, offset int64, t Tensor) io.Reader {
	return &spanReader{f, offset, spans(t)}
}

// A spanReader reads the concatenation of spans of a file's data section.
type spanReader struct {
	f      io.ReaderAt
	offset int64 // of the data section
	left   []span
}

func (r *spanReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		return 0, io.EOF
	}
	s := &r.left[0]
	n, err := r.f.ReadAt(p[:min(int64(len(p)), s.end-s.begin)], r.offset+s.begin)
	if s.begin += int64(n); s.begin == s.end {
		r.left, err = r.left[1:], nil
	}
	return n, err
}

// Stats reads a tensor and returns its statistics, or nil if the dtype is not
// numeric. It reads a part at a time and passes the number of its bytes to done.
func (c *Checkpoint) Stats(ctx context.Context, t Tensor, done func(int64)) (*Stats, error) {
	if !t.Dtype.IsReadable() {
		done(t.Bytes())
		return nil, nil
	}
	var sum Summary
	for part, err := range c.Parts(ctx, t, PartLen) {
		if err != nil {
			return nil, err
		}
		sum.Join(part.Stats(), part.Len())
		done(int64(part.Len() * t.Dtype.Size()))
	}
	stats := sum.Stats()
	return &stats, nil
}
