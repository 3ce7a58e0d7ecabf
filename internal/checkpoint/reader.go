package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
)

// PartLen is how many elements of a tensor are read at a time where nothing speaks
// for another number.
const PartLen = 1 << 18

// A Reader reads the elements of a checkpoint's tensors. Several goroutines may use
// it.
type Reader struct {
	files map[string]openFile // by the names of the checkpoint's files
}

type openFile struct {
	*os.File
	data int64 // where the tensors begin
}

// OpenReader opens a checkpoint's files by the descriptors whose headers were
// checked.
func OpenReader(ck *Checkpoint) (*Reader, error) {
	r := &Reader{map[string]openFile{}}
	for _, file := range ck.Files {
		var f *os.File
		path, err := file.Path()
		if err == nil {
			f, err = os.Open(path)
		}
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		}
		r.files[file.Name] = openFile{f, file.Header.DataOffset}
	}
	return r, nil
}

// Close closes the files.
func (r *Reader) Close() {
	for _, f := range r.files {
		f.Close()
	}
}

// Parts yields a tensor, whose dtype must be of whole bytes, so many elements at a
// time, its rows in the order of its form. A part is good until the next one.
// Eight-bit floats come as float32.
func (r *Reader) Parts(ctx context.Context, t Tensor, step int) iter.Seq2[*Array, error] {
	return func(yield func(*Array, error) bool) {
		f := r.files[t.File]
		elements := stored(f, f.data, t)
		size, left := t.Dtype.Size(), t.Bytes()
		buffer := make([]byte, min(int64(step)*int64(size), left))
		for ; left > 0; left -= int64(len(buffer)) {
			buffer = buffer[:min(int64(len(buffer)), left)]
			err := context.Cause(ctx)
			if err == nil {
				if _, err = io.ReadFull(elements, buffer); err == io.EOF || err == io.ErrUnexpectedEOF {
					err = errors.New("the file was cut short while it was read")
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

// Values yields the elements of a tensor in its form as numbers, so many at a time,
// which must be whole rows where [Tensor.InRows] says so. They are good until the
// next ones.
func (r *Reader) Values(ctx context.Context, t Tensor, step int) iter.Seq2[[]float64, error] {
	return func(yield func([]float64, error) bool) {
		for part, err := range r.Parts(ctx, t, step) {
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

// widen makes float32 of eight-bit floats.
func widen(data []byte, values *[256]float32) []byte {
	wide := make([]byte, 0, 4*len(data))
	for _, b := range data {
		wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(values[b]))
	}
	return wide
}

// stored reads the bytes of a tensor out of a safetensors file whose tensors begin
// at an offset: its rows in the order of its form.
func stored(f io.ReaderAt, offset int64, t Tensor) io.Reader {
	return &spanReader{f, offset, spans(t)}
}

// A spanReader reads some spans of a file's data, one after the other.
type spanReader struct {
	f      io.ReaderAt
	offset int64 // where the data begins
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

// Stats reads a tensor and returns its statistics, nil for a dtype that cannot be
// read as numbers. It holds a part of the tensor at a time, and reports the bytes of
// each to done.
func (r *Reader) Stats(ctx context.Context, t Tensor, done func(int64)) (*Stats, error) {
	if !t.Dtype.IsReadable() {
		done(t.Bytes())
		return nil, nil
	}
	var sum Summary
	for part, err := range r.Parts(ctx, t, PartLen) {
		if err != nil {
			return nil, err
		}
		sum.Join(part.Stats(), part.Len())
		done(int64(part.Len() * t.Dtype.Size()))
	}
	stats := sum.Stats()
	return &stats, nil
}
