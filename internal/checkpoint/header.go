package checkpoint

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
)

const (
	// maxHeader is the format's limit on the size of a header, in bytes.
	maxHeader = 100_000_000
	// maxName limits the length of a tensor's name, in bytes. Real names have at
	// most a few hundred; printed tables are as wide as the longest.
	maxName = 4096
)

// Header is the validated header of a safetensors file.
type Header struct {
	Tensors map[string]Tensor
	// Names lists the tensors in the order of their data.
	Names []string
	// Metadata is the text under __metadata__, nil if the key is missing.
	Metadata map[string]string
	// DataOffset is the offset of the data section in the file, in bytes.
	DataOffset int64
}

// ParseHeader reads and validates the header of a safetensors file of size
// bytes. Headers that it accepts have only one interpretation: no key is
// repeated, each tensor has as many bytes as its shape and dtype require, and the
// tensors fill the data section without gaps or overlaps.
//
// It is stricter than the safetensors crate where MLX would misread a file: an
// axis is at most 2^31-1 (MLX wraps larger ones), names contain no NUL (C strings
// end there), and tensor entries have no unknown keys.
func ParseHeader(r io.ReaderAt, size int64) (*Header, error) {
	if size < 8 {
		return nil, fmt.Errorf("not a safetensors file: expected at least 8 bytes, found %d", size)
	}
	var prefix [8]byte
	if err := readAt(r, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("cannot read the header length: %w", err)
	}
	h, err := readHeader(prefix[:], io.NewSectionReader(r, 8, size-8), maxHeader, size-8)
	if err != nil {
		return nil, err
	}
	return h, h.tile(size - h.DataOffset)
}

// ReadHeader reads and validates the header of a safetensors file that is part of a stream, whose
// next bytes are then the tensors' data, in the order of Names. The header has at most limit bytes.
// The error is io.EOF only if the stream ends before the file.
func ReadHeader(r io.Reader, limit int64) (*Header, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err == io.EOF {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("cannot read the header length: %w", err)
	}
	h, err := readHeader(prefix[:], r, limit, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	var size int64
	for _, t := range h.Tensors {
		size = max(size, t.End)
	}
	return h, h.tile(size)
}

// readHeader reads a header of at most limit bytes after the first 8, which so many bytes follow.
func readHeader(prefix []byte, r io.Reader, limit, follow int64) (*Header, error) {
	length, err := headerLength(prefix, min(limit, maxHeader))
	if err != nil {
		return nil, err
	}
	if length > follow {
		return nil, fmt.Errorf("header length is %d bytes, but only %d follow it: the file is damaged or truncated", length, follow)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("cannot read the header: %w", oserr.NoEOF(err))
	}
	h := &Header{DataOffset: 8 + length}
	if err := h.parse(text); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return h, nil
}

// headerLength returns the length of a header, of a file's first 8 bytes.
func headerLength(prefix []byte, most int64) (int64, error) {
	length, other := binary.LittleEndian.Uint64(prefix), formatOf(prefix)
	if prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5 && length > maxHeader {
		other = pickle
	}
	if other != nil {
		return 0, fmt.Errorf("not a safetensors file: it is %v", other)
	}
	if length > uint64(most) {
		return 0, fmt.Errorf("header length is %d bytes, expected at most %d: the file is damaged or not a safetensors file",
			length, most)
	}
	return int64(length), nil
}

// parse reads the JSON of the header. tile checks the positions of the tensors.
func (h *Header) parse(text []byte) error {
	// The format forbids leading white space. Trailing white space is padding.
	if len(text) == 0 || text[0] != '{' {
		return failf(0, "expected '{' as the first byte")
	}
	s, err := newScanner(text)
	if err != nil {
		return err
	}
	h.Tensors = make(map[string]Tensor)
	return s.object(func(key string, offset int) error {
		if key == "__metadata__" {
			return h.parseMetadata(s)
		}
		switch {
		case strings.IndexByte(key, 0) >= 0:
			return failf(offset, "tensor name %s contains a NUL", quote.Text(key))
		case len(key) > maxName:
			return failf(offset, "tensor name %s is too long: %d bytes, expected at most %d", quote.Text(key), len(key), maxName)
		}
		t, err := parseTensor(s, key)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote.Text(key), err)
		}
		h.Tensors[key] = t
		h.Names = append(h.Names, key)
		return nil
	})
}

func (h *Header) parseMetadata(s *scanner) error {
	// MLX writes null if there is no metadata.
	if s.peek(); s.has("null") {
		return s.skip()
	}
	h.Metadata = make(map[string]string)
	err := s.object(func(key string, _ int) error {
		value, err := s.str()
		if err != nil {
			return fmt.Errorf("key %s: %w", quote.Text(key), err)
		}
		h.Metadata[key] = value
		return nil
	})
	if err != nil {
		return fmt.Errorf("__metadata__: %w", err)
	}
	return nil
}

// parseTensor reads and validates one entry.
func parseTensor(s *scanner, name string) (Tensor, error) {
	t := Tensor{Name: name, Shape: []int{}}
	start := s.at()
	has := map[string]bool{}
	err := s.object(func(key string, offset int) (err error) {
		has[key] = true
		switch key {
		case "dtype":
			var name string
			name, err = s.str()
			t.Dtype = Dtype(name)
		case "shape":
			t.Shape, err = parseShape(s)
		case "data_offsets":
			t.Begin, t.End, err = parseOffsets(s)
		default:
			return failf(offset, "unknown key %s", quote.Text(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	for _, key := range []string{"dtype", "shape", "data_offsets"} {
		if !has[key] {
			return t, failf(start, "no key %s", key)
		}
	}
	want, err := t.size()
	if err != nil {
		return t, &jsonError{start, err}
	}
	if t.Begin > t.End {
		return t, failf(start, "data_offsets %d, %d are in the wrong order", t.Begin, t.End)
	}
	if got := t.End - t.Begin; got != want {
		return t, failf(start, "expected %d bytes for %s of shape %v, found data_offsets %d, %d (%d bytes)",
			want, t.Dtype, t.Shape, t.Begin, t.End, got)
	}
	return t, nil
}

// size returns the number of bytes that the tensor's shape and dtype require.
func (t *Tensor) size() (int64, error) {
	bits := int64(t.Dtype.Bits())
	if bits == 0 {
		return 0, fmt.Errorf("unknown dtype %s", quote.Text(string(t.Dtype)))
	}
	// Check the product of the axes that are not zero: MLX computes strides from
	// them even if the tensor is empty.
	n, empty := bits, false
	for _, axis := range t.Shape {
		switch {
		case axis == 0:
			empty = true
		case n > math.MaxInt64/int64(axis):
			return 0, fmt.Errorf("%s of shape %v overflows 63 bits", t.Dtype, t.Shape)
		default:
			n *= int64(axis)
		}
	}
	if empty {
		return 0, nil
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("%s of shape %v takes %d bits, not whole bytes", t.Dtype, t.Shape, n)
	}
	return n / 8, nil
}

func parseShape(s *scanner) ([]int, error) {
	shape := []int{}
	err := s.array(func() error {
		at := s.at()
		n, err := s.whole()
		if err != nil {
			return err
		}
		if n > math.MaxInt32 {
			return failf(at, "axis %d is too large: %d, expected at most %d", len(shape), n, math.MaxInt32)
		}
		if len(shape) == maxAxes {
			return failf(at, "more than %d axes", maxAxes)
		}
		shape = append(shape, int(n))
		return nil
	})
	return shape, err
}

func parseOffsets(s *scanner) (begin, end int64, err error) {
	var pair [2]int64
	n, start := 0, s.at()
	err = s.array(func() error {
		v, err := s.whole()
		if err != nil {
			return err
		}
		if n < len(pair) {
			pair[n] = v
		}
		n++
		return nil
	})
	if err == nil && n != len(pair) {
		err = failf(start, "expected 2 numbers, found %d", n)
	}
	return pair[0], pair[1], err
}

// tile sorts Names by the tensors' positions and checks that the tensors fill the
// data section of size bytes exactly. The header may list them in any order: MLX
// writes them sorted by name.
func (h *Header) tile(size int64) error {
	slices.SortFunc(h.Names, func(x, y string) int {
		a, b := h.Tensors[x], h.Tensors[y]
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(x, y))
	})
	var end int64
	last := ""
	for _, name := range h.Names {
		t := h.Tensors[name]
		switch {
		case t.Begin > end:
			return fmt.Errorf("tensor %s: begins at byte %d of the data, expected %d: the bytes between belong to no tensor",
				quote.Text(name), t.Begin, end)
		case t.Begin < end:
			return fmt.Errorf("tensor %s: begins at byte %d of the data, inside tensor %s, which ends at %d",
				quote.Text(name), t.Begin, quote.Text(last), end)
		case t.End > size:
			return fmt.Errorf("tensor %s: ends at byte %d of the data, but the file has only %d: it is damaged or truncated",
				quote.Text(name), t.End, size)
		}
		end, last = t.End, name
	}
	if end != size {
		return fmt.Errorf("the tensors end at byte %d of the data, but the file has %d: the last %d belong to no tensor",
			end, size, size-end)
	}
	return nil
}

// encodeHeader returns the beginning of a safetensors file: the length of the
// header and the header. The tensors must follow in this order, without gaps. If
// metadata is nil, it is left out.
func encodeHeader(list []Tensor, metadata map[string]string) ([]byte, error) {
	type entry struct {
		Dtype   Dtype    `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	text := make([]byte, 8, 1<<10)
	put := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		text = append(text, map[bool]byte{true: '{', false: ','}[len(text) == 8])
		text = append(append(append(text, k...), ':'), v...)
		return nil
	}
	if metadata != nil {
		if err := put("__metadata__", metadata); err != nil {
			return nil, err
		}
	}
	var at int64
	for _, t := range list {
		if t.Name == "__metadata__" || strings.IndexByte(t.Name, 0) >= 0 {
			return nil, fmt.Errorf("tensor %q: the safetensors format does not allow this name", t.Name)
		}
		end := at + t.Bytes()
		if err := put(t.Name, entry{t.Dtype, append([]int{}, t.Shape...), [2]int64{at, end}}); err != nil {
			return nil, err
		}
		at = end
	}
	if len(text) == 8 {
		text = append(text, '{')
	}
	text = append(text, '}')
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	binary.LittleEndian.PutUint64(text, uint64(len(text)-8))
	return text, nil
}
