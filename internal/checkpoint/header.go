package checkpoint

import (
	"bytes"
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
	// maxHeader is the format's bound on a header, in bytes.
	maxHeader = 100_000_000
	// maxName bounds a tensor's name, in bytes: the longest that there are have
	// some hundred, and a table is as wide as the longest.
	maxName = 4096
)

// Header is the validated header of a safetensors file.
type Header struct {
	Tensors map[string]Tensor
	// Names lists the tensors in the order of their data.
	Names []string
	// Metadata is the free text under __metadata__, nil if the file has none.
	Metadata map[string]string
	// DataOffset is where the data section begins, in bytes from the start of the file.
	DataOffset int64
}

// ParseHeader reads and validates the header of a safetensors file of size
// bytes. What it accepts cannot be read in two ways: no key is given twice,
// each tensor's bytes are what its shape and element type need, and the tensors
// lie in the data section one after the other, from its first byte to the last
// of the file, without gaps or overlaps.
//
// It is stricter than the safetensors crate where MLX would misread a file that
// the crate accepts: an axis ends at 2^31-1 (MLX wraps it), names have no NUL
// (C strings end there), tensor entries have no keys of unknown meaning.
func ParseHeader(r io.ReaderAt, size int64) (*Header, error) {
	if size < 8 {
		return nil, fmt.Errorf("not a safetensors file: expected at least 8 bytes, found %d", size)
	}
	var prefix [8]byte
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("read the header length: %w", oserr.NoEOF(err))
	}
	if hint := foreign(prefix[:]); hint != "" {
		return nil, fmt.Errorf("not a safetensors file: %s", hint)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeader {
		return nil, fmt.Errorf("header length is %d bytes, the format allows at most %d: damaged, or not a safetensors file", length, maxHeader)
	}
	if int64(length) > size-8 {
		return nil, fmt.Errorf("header length is %d bytes, but only %d follow it: the file is damaged or cut short", length, size-8)
	}
	text := make([]byte, length)
	if _, err := r.ReadAt(text, 8); err != nil && length > 0 {
		return nil, fmt.Errorf("read the header: %w", oserr.NoEOF(err))
	}
	h := &Header{DataOffset: 8 + int64(length)}
	if err := h.parse(text); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := h.tile(size - h.DataOffset); err != nil {
		return nil, err
	}
	return h, nil
}

// convert is the hint about files that hold weights and are not read.
const convert = "load the model with diffusers or transformers and save it with save_pretrained(folder, safe_serialization=True)"

// foreign recognises by their first 8 bytes what is often found under a
// safetensors name.
func foreign(prefix []byte) string {
	switch {
	case bytes.HasPrefix(prefix, []byte("version ")):
		return "it is a Git LFS pointer, run git lfs pull to get the weights"
	case bytes.HasPrefix(prefix, []byte("PK\x03\x04")):
		return "it is a zip archive, as torch.save writes (" + convert + ")"
	case prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5 && binary.LittleEndian.Uint64(prefix) > maxHeader:
		return "it is a pickle, as torch.save wrote, which can run programs and is not read (" + convert + ")"
	case bytes.HasPrefix(prefix, []byte("GGUF")):
		return "it is a GGUF file (" + convert + ")"
	case bytes.HasPrefix(prefix, []byte("\x93NUMPY")):
		return "it is a NumPy file"
	case bytes.HasPrefix(prefix, []byte("\x89HDF")):
		return "it is an HDF5 file, as Keras writes"
	case bytes.HasPrefix(prefix, []byte("<!")), bytes.HasPrefix(prefix, []byte("<html")):
		return "it is a web page, the download went wrong"
	}
	return ""
}

// parse reads the JSON of the header; where the tensors lie is checked by tile.
func (h *Header) parse(text []byte) error {
	// Leading white space is refused by the format, trailing is its padding.
	if len(text) == 0 || text[0] != '{' {
		return failf(0, "expected '{' as the first byte")
	}
	s, err := newScanner(text)
	if err != nil {
		return err
	}
	h.Tensors = make(map[string]Tensor)
	metadata := false
	err = s.object(func(key string, offset int) error {
		if key == "__metadata__" {
			if metadata {
				return duplicate(key, offset)
			}
			metadata = true
			return h.parseMetadata(s)
		}
		if _, dup := h.Tensors[key]; dup {
			return duplicate(key, offset)
		}
		switch {
		case strings.IndexByte(key, 0) >= 0:
			return failf(offset, "tensor name %s holds a NUL", quote.Text(key))
		case len(key) > maxName:
			return failf(offset, "tensor name %s is too long: %d bytes, at most %d", quote.Text(key), len(key), maxName)
		}
		t, err := parseTensor(s, key)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote.Text(key), err)
		}
		h.Tensors[key] = t
		h.Names = append(h.Names, key)
		return nil
	})
	if err != nil {
		return err
	}
	return s.end()
}

func (h *Header) parseMetadata(s *scanner) error {
	// MLX writes null where it has no metadata.
	if s.peek(); s.has("null") {
		s.pos += len("null")
		return nil
	}
	h.Metadata = make(map[string]string)
	err := s.object(func(key string, offset int) error {
		if _, dup := h.Metadata[key]; dup {
			return duplicate(key, offset)
		}
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

// parseTensor reads one entry and checks it in itself.
func parseTensor(s *scanner, name string) (Tensor, error) {
	t := Tensor{Name: name, Shape: []int{}}
	s.peek()
	start := s.pos
	var hasDtype, hasShape, hasOffsets bool
	err := s.object(func(key string, offset int) error {
		var seen *bool
		var read func() error
		switch key {
		case "dtype":
			seen, read = &hasDtype, func() error {
				name, err := s.str()
				t.Dtype = Dtype(name)
				return err
			}
		case "shape":
			seen, read = &hasShape, func() (err error) {
				t.Shape, err = parseShape(s)
				return err
			}
		case "data_offsets":
			seen, read = &hasOffsets, func() (err error) {
				t.Begin, t.End, err = parseOffsets(s)
				return err
			}
		default:
			return failf(offset, "unknown key %s", quote.Text(key))
		}
		if *seen {
			return duplicate(key, offset)
		}
		*seen = true
		if err := read(); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	switch {
	case !hasDtype:
		return t, failf(start, "no key dtype")
	case !hasShape:
		return t, failf(start, "no key shape")
	case !hasOffsets:
		return t, failf(start, "no key data_offsets")
	}
	want, err := t.size()
	if err != nil {
		return t, &jsonError{start, err}
	}
	if t.Begin > t.End {
		return t, failf(start, "data_offsets %d, %d run backwards", t.Begin, t.End)
	}
	if got := t.End - t.Begin; got != want {
		return t, failf(start, "expected %d bytes for %s of shape %v, found data_offsets %d, %d (%d bytes)", want, t.Dtype, t.Shape, t.Begin, t.End, got)
	}
	return t, nil
}

// size returns the bytes that the tensor's shape and element type need.
func (t *Tensor) size() (int64, error) {
	bits := int64(t.Dtype.Bits())
	if bits == 0 {
		return 0, fmt.Errorf("unknown dtype %s", quote.Text(string(t.Dtype)))
	}
	// The product is checked over the axes that are not zero: MLX computes
	// strides from those even where the tensor is empty.
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
		s.peek()
		at := s.pos
		n, err := s.whole()
		if err != nil {
			return err
		}
		if n > math.MaxInt32 {
			return failf(at, "axis %d is too large: %d, at most %d", len(shape), n, math.MaxInt32)
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
	n := 0
	s.peek()
	start := s.pos
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

// tile sorts Names by where the tensors lie and checks that these cover the
// data section of size bytes exactly. The header itself may list them in any
// order: MLX writes them by name.
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
			return fmt.Errorf("tensor %s: expected to begin at byte %d of the data, found %d: bytes between belong to no tensor", quote.Text(name), end, t.Begin)
		case t.Begin < end:
			return fmt.Errorf("tensor %s: begins at byte %d of the data, inside tensor %s that ends at %d", quote.Text(name), t.Begin, quote.Text(last), end)
		case t.End > size:
			return fmt.Errorf("tensor %s: ends at byte %d of the data, but the file has only %d: it is damaged or cut short", quote.Text(name), t.End, size)
		}
		end, last = t.End, name
	}
	if end != size {
		return fmt.Errorf("the tensors end at byte %d of the data, but the file has %d: the last %d belong to no tensor", end, size, size-end)
	}
	return nil
}

// encodeHeader makes what a safetensors file begins with whose tensors follow in
// this order, with nothing between them. Metadata that are nil are left out.
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
			return nil, fmt.Errorf("tensor %q: a safetensors file cannot have that name", t.Name)
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
