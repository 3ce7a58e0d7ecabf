package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// blob is a safetensors file with the header text and n bytes of data.
func blob(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func prefixed(length uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, length), rest...)
}

func parse(b []byte) (*Header, error) {
	return ParseHeader(bytes.NewReader(b), int64(len(b)))
}

// entry is a header with one tensor "a".
func entry(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"a":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
}

// u8 is a member for n bytes from begin.
func u8(name string, begin, end int) string {
	return fmt.Sprintf(`"%s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, name, end-begin, begin, end)
}

var accepted = []struct {
	name string
	file []byte
	want string // names in the order of their data, with shapes
}{
	{"no tensors", blob(`{}`, 0), ""},
	{"padding", blob("{"+u8("a", 0, 2)+"} \t\r\n  ", 2), "a[2]"},
	{"white space within", blob("{ \"a\" :\n{\"dtype\":\t\"U8\", \"shape\": [ 2 ] ,\"data_offsets\":[0 ,2 ]}\r}", 2), "a[2]"},
	{"scalar", blob(entry("F32", "[]", "[0,4]"), 4), "a[]"},
	{"empty tensor", blob(entry("F32", "[0]", "[0,0]"), 0), "a[0]"},
	{"empty tensors between", blob(`{`+u8("b", 2, 2)+`,`+u8("a", 0, 2)+`,`+u8("c", 2, 2)+`,`+u8("d", 2, 3)+`}`, 3), "a[2] b[0] c[0] d[1]"},
	{"header in another order", blob(`{`+u8("a", 3, 5)+`,`+u8("b", 0, 3)+`}`, 5), "b[3] a[2]"},
	{"keys in another order", blob(`{"a":{"data_offsets":[0,2],"shape":[1,2],"dtype":"U8"}}`, 2), "a[1 2]"},
	{"metadata", blob(`{"__metadata__":{"format":"pt"},`+u8("a", 0, 1)+`}`, 1), "a[1]"},
	{"metadata last", blob(`{`+u8("a", 0, 1)+`,"__metadata__":{}}`, 1), "a[1]"},
	{"null metadata, as MLX writes", blob(`{"__metadata__":null,`+u8("a", 0, 1)+`}`, 1), "a[1]"},
	{"escaped name", blob(`{`+u8(`\u00e9\ud83d\ude00\"\\\/\n`, 0, 1)+`}`, 1), "é😀\"\\/\n[1]"},
	{"empty name", blob(`{`+u8("", 0, 1)+`}`, 1), "[1]"},
	{"half bytes that fill whole ones", blob(entry("F4", "[3,2]", "[0,3]"), 3), "a[3 2]"},
	{"six bits that fill whole bytes", blob(entry("F6_E2M3", "[4]", "[0,3]"), 3), "a[4]"},
	{"longest axis", blob(entry("U8", "[2147483647,0]", "[0,0]"), 0), "a[2147483647 0]"},
	{"as many axes as allowed", blob(entry("U8", "["+strings.Repeat("1,", 63)+"1]", "[0,1]"), 1), "a" +
		fmt.Sprint(slices.Repeat([]int{1}, 64))},
}

func TestParseHeaderAccepts(t *testing.T) {
	for _, test := range accepted {
		t.Run(test.name, func(t *testing.T) {
			h, err := parse(test.file)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, name := range h.Names {
				got = append(got, fmt.Sprint(name, h.Tensors[name].Shape))
			}
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("tensors %s, want %s", got, test.want)
			}
			if err := tiles(h, int64(len(test.file))); err != nil {
				t.Error(err)
			}
		})
	}
}

var malformed = []struct {
	name string
	file []byte
	want string // part of the error
}{
	// the length and what it covers
	{"empty file", nil, "at least 8 bytes, found 0"},
	{"7 bytes", make([]byte, 7), "at least 8 bytes, found 7"},
	{"no header", make([]byte, 8), "expected '{' as the first byte"},
	{"length wraps", prefixed(math.MaxUint64, "{}"), "at most 100000000"},
	{"length plus 8 wraps", prefixed(math.MaxUint64-7, "{}"), "at most 100000000"},
	{"length is negative as int64", prefixed(1<<63, "{}"), "at most 100000000"},
	{"length over the cap", prefixed(100_000_001, "{}"), "at most 100000000"},
	{"length past the file", prefixed(3, "{}"), "3 bytes, but only 2 follow"},
	{"length stops short", prefixed(1, "{}"), "unexpected end of JSON input"},
	{"git lfs pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"), "git lfs pull"},
	{"zip", []byte("PK\x03\x04............"), "torch.save"},
	{"gguf", []byte("GGUF\x03\x00\x00\x00........"), "GGUF file"},
	{"web page", []byte("<!DOCTYPE html><html>"), "web page"},

	// JSON
	{"white space before", blob(` {}`, 0), "expected '{' as the first byte"},
	{"byte order mark", blob("\ufeff{}", 0), "expected '{' as the first byte"},
	{"array", blob(`[]`, 0), "expected '{' as the first byte"},
	{"not UTF-8", blob("{\"\xff\":1}", 0), "at byte 2: the text is not UTF-8"},
	{"surrogate in UTF-8", blob("{\"\xed\xa0\x80\":1}", 0), "not UTF-8"},
	{"lone surrogate escape", blob(`{`+u8(`\ud800`, 0, 1)+`}`, 1), `invalid \u escape`},
	{"wrong surrogate pair", blob(`{`+u8(`\ud800\u0041`, 0, 1)+`}`, 1), `invalid \u escape`},
	{"short escape", blob(`{"\u00`, 0), "hexadecimal character escape"},
	{"unknown escape", blob(`{`+u8(`\x41`, 0, 1)+`}`, 1), "in string escape code"},
	{"escape at the end", blob(`{"\`, 0), "in string escape code"},
	{"control character", blob("{"+u8("a\n", 0, 1)+"}", 1), "invalid character '\\n' in string literal"},
	{"control character after an escape", blob("{"+u8("\\n\n", 0, 1)+"}", 1), "invalid character '\\n' in string literal"},
	{"string without an end", blob(`{"a`, 0), "unexpected end of JSON input"},
	{"key is a number", blob(`{1:2}`, 0), "invalid character '1' looking for beginning of object key string"},
	{"no colon", blob(`{"a"}`, 0), "invalid character '}' after object key"},
	{"comma before the end", blob(`{`+u8("a", 0, 1)+`,}`, 1), "invalid character '}' looking for beginning of object key"},
	{"no comma", blob(`{`+u8("a", 0, 1)+u8("b", 1, 2)+`}`, 2), "after object key:value pair"},
	{"second value", blob(`{}{}`, 0), "invalid character '{' after top-level value"},
	{"NUL padding", blob("{}\x00\x00", 0), "after top-level value"},
	{"comment", blob(`{/**/}`, 0), "invalid character '/'"},
	{"nested garbage", blob(`{"a":`+strings.Repeat("[", 100_000)+`}`, 0), "exceeded max depth"},
	{"nested objects", blob(strings.Repeat(`{"a":`, 100_000), 0), "exceeded max depth"},

	// names
	{"duplicate tensor", blob(`{`+u8("a", 0, 1)+`,`+u8("a", 0, 1)+`}`, 1), `duplicate key "a"`},
	{"duplicate tensor, escaped", blob(`{`+u8("a", 0, 1)+`,`+u8(`\u0061`, 0, 1)+`}`, 1), `duplicate key "a"`},
	{"long name", blob(`{"`+strings.Repeat("a", 100_000)+`":1}`, 0), `aaa"... is too long: 100000 bytes, expected at most 4096`},
	{"NUL in a name", blob(`{`+u8(`a\u0000b`, 0, 1)+`}`, 1), "NUL"},

	// metadata
	{"metadata is a string", blob(`{"__metadata__":"x"}`, 0), "__metadata__: at byte 16: expected an object, found a string"},
	{"metadata holds a number", blob(`{"__metadata__":{"x":1}}`, 0), `key "x": at byte 21: expected a string, found a number`},
	{"metadata holds null", blob(`{"__metadata__":{"x":null}}`, 0), "expected a string, found null"},
	{"metadata holds an object", blob(`{"__metadata__":{"x":{}}}`, 0), "expected a string, found an object"},
	{"metadata key twice", blob(`{"__metadata__":{"x":"","x":""}}`, 0), `duplicate key "x"`},
	{"metadata twice", blob(`{"__metadata__":{},"__metadata__":{}}`, 0), `duplicate key "__metadata__"`},
	{"metadata twice, null first", blob(`{"__metadata__":null,"__metadata__":{}}`, 0), `duplicate key "__metadata__"`},

	// one entry
	{"entry is null", blob(`{"a":null}`, 0), `tensor "a": at byte 5: expected an object, found null`},
	{"entry is an array", blob(`{"a":["U8",[1],[0,1]]}`, 1), "expected an object, found an array"},
	{"no dtype", blob(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), "no key dtype"},
	{"no shape", blob(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), "no key shape"},
	{"no offsets", blob(`{"a":{"dtype":"U8","shape":[1]}}`, 1), "no key data_offsets"},
	{"unknown key", blob(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}`, 1), `unknown key "strides"`},
	{"dtype twice", blob(`{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1), `duplicate key "dtype"`},
	{"shape twice", blob(`{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}`, 1), `duplicate key "shape"`},
	{"offsets twice", blob(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}}`, 1),
		`duplicate key "data_offsets"`},
	{"unknown dtype", blob(entry("F128", "[1]", "[0,16]"), 16), `unknown dtype "F128"`},
	{"dtype in lower case", blob(entry("f32", "[1]", "[0,4]"), 4), `unknown dtype "f32"`},
	{"dtype is a number", blob(`{"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}}`, 1),
		"dtype: at byte 14: expected a string, found a number"},

	// numbers
	{"shape is a number", blob(entry("U8", "1", "[0,1]"), 1), "shape: at byte 27: expected an array, found a number"},
	{"shape is null", blob(entry("U8", "null", "[0,1]"), 1), "expected an array, found null"},
	{"negative axis", blob(entry("U8", "[-1]", "[0,1]"), 1), `expected a whole number, found "-1"`},
	{"minus zero", blob(entry("U8", "[-0]", "[0,0]"), 0), `expected a whole number, found "-0"`},
	{"negative axes with a positive product", blob(entry("U8", "[-2,-2]", "[0,4]"), 4), "expected a whole number"},
	{"fraction", blob(entry("U8", "[1.0]", "[0,1]"), 1), `expected a whole number, found "1.0"`},
	{"exponent", blob(entry("U8", "[1e3]", "[0,1000]"), 1000), `expected a whole number, found "1e3"`},
	{"leading zero", blob(entry("U8", "[01]", "[0,1]"), 1), "after array element"},
	{"only a minus", blob(entry("U8", "[-]", "[0,1]"), 1), "in numeric literal"},
	{"number in a string", blob(entry("U8", `["1"]`, "[0,1]"), 1), "expected a whole number, found a string"},
	{"true", blob(entry("U8", "[true]", "[0,1]"), 1), "expected a whole number, found true"},
	{"nested shape", blob(entry("U8", "[[1]]", "[0,1]"), 1), "expected a whole number, found an array"},
	{"comma at the end of a shape", blob(entry("U8", "[1,]", "[0,1]"), 1), "invalid character ']'"},
	{"axis over 64 bits", blob(entry("U8", "[18446744073709551617]", "[0,1]"), 1), "too large"},
	{"axis over 63 bits", blob(entry("U8", "[9223372036854775808]", "[0,1]"), 1), "too large"},
	{"axis that MLX wraps to 2", blob(entry("U8", "[4294967298]", "[0,2]"), 2), "axis 0 is too large: 4294967298"},
	{"product wraps to 0", blob(entry("U8", "[1073741824,1073741824,16]", "[0,0]"), 0), "overflows"},
	{"product wraps to 4", blob(entry("U8", "[641,6700417,2147483647,2147483647]", "[0,4]"), 4), "overflows"},
	{"bytes wrap", blob(entry("F64", "[2147483647,2147483647,2]", "[0,8]"), 8), "overflows"},
	{"overflow in an empty tensor", blob(entry("U8", "[0,2147483647,2147483647,16]", "[0,0]"), 0), "overflows"},
	{"huge shape", blob(entry("U8", "["+strings.Repeat("1,", 1_000_000)+"1]", "[0,1]"), 1), "more than 64 axes"},
	{"half a byte", blob(entry("F4", "[3]", "[0,2]"), 2), "takes 12 bits, not whole bytes"},

	// offsets
	{"one offset", blob(entry("U8", "[1]", "[0]"), 1), "expected 2 numbers, found 1"},
	{"three offsets", blob(entry("U8", "[1]", "[0,1,1]"), 1), "expected 2 numbers, found 3"},
	{"negative offset", blob(entry("U8", "[1]", "[-1,0]"), 1), "expected a whole number"},
	{"offset over 63 bits", blob(entry("U8", "[1]", "[0,18446744073709551615]"), 1), "too large"},
	{"offsets backwards", blob(entry("U8", "[1]", "[1,0]"), 1), "are in the wrong order"},
	{"fewer bytes than the shape", blob(entry("F32", "[2,3]", "[0,20]"), 20),
		"expected 24 bytes for F32 of shape [2 3], found data_offsets 0, 20 (20 bytes)"},
	{"more bytes than the shape", blob(entry("F32", "[2,3]", "[0,28]"), 28), "expected 24 bytes"},
	{"scalar without bytes", blob(entry("F32", "[]", "[0,0]"), 0), "expected 4 bytes"},

	// the data section
	{"hole before", blob(entry("U8", "[1]", "[1,2]"), 2), `tensor "a": begins at byte 1 of the data, expected 0`},
	{"hole between", blob(`{`+u8("a", 0, 1)+`,`+u8("b", 2, 3)+`}`, 3), `tensor "b": begins at byte 2 of the data, expected 1`},
	{"overlap", blob(`{`+u8("a", 0, 2)+`,`+u8("b", 1, 3)+`}`, 3), `tensor "b": begins at byte 1 of the data, inside tensor "a"`},
	{"the same bytes twice", blob(`{`+u8("a", 0, 2)+`,`+u8("b", 0, 2)+`}`, 2), `tensor "b": begins at byte 0`},
	{"empty tensor inside another", blob(`{`+u8("a", 0, 2)+`,`+u8("b", 1, 1)+`}`, 2), `tensor "b": begins at byte 1`},
	{"truncated", blob(`{`+u8("a", 0, 1)+`,`+u8("b", 1, 9)+`}`, 8), `tensor "b": ends at byte 9 of the data, but the file has only 8`},
	{"no data", blob(entry("U8", "[1]", "[0,1]"), 0), "truncated"},
	{"bytes after", blob(entry("U8", "[1]", "[0,1]"), 3), "the last 2 belong to no tensor"},
	{"bytes after no tensors", blob(`{}`, 1), "the last 1 belong to no tensor"},
}

func TestParseHeaderRefuses(t *testing.T) {
	for _, test := range malformed {
		t.Run(test.name, func(t *testing.T) {
			h, err := parse(test.file)
			if err == nil {
				t.Fatalf("accepted: %v", h.Tensors)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q, want one with %q", err, test.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

// A header is accepted whole or not at all: every shorter prefix of a good
// file, and every file with a byte more, is refused.
func TestParseHeaderTruncated(t *testing.T) {
	for _, test := range accepted {
		for n := range test.file {
			if _, err := parse(test.file[:n]); err == nil {
				t.Errorf("%s: accepted the first %d of %d bytes", test.name, n, len(test.file))
			}
		}
		if _, err := parse(append(slices.Clone(test.file), ' ')); err == nil {
			t.Errorf("%s: accepted with a byte more", test.name)
		}
	}
}

func TestParseHeaderFields(t *testing.T) {
	header := `{"__metadata__":{"format":"pt","é":"\n"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},` +
		`"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`
	h, err := parse(blob(header, 16))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := h.DataOffset, int64(8+len(header)); got != want {
		t.Errorf("DataOffset %d, want %d", got, want)
	}
	if got := fmt.Sprint(h.Metadata); got != "map[format:pt é:\n]" {
		t.Errorf("Metadata %q", got)
	}
	if got := fmt.Sprintf("%+v", h.Tensors["w"]); got !=
		"{Name:w Dtype:BF16 Shape:[2 3] Begin:4 End:16 File: Transforms:[] Stored:[] Packing:<nil>}" {
		t.Errorf("tensor %s", got)
	}
	if h.Tensors["b"].Shape == nil {
		t.Error("the shape of a scalar is nil")
	}
}

func TestDtypeBits(t *testing.T) {
	for dtype, want := range map[Dtype]int{"F64": 64, "F32": 32, "BF16": 16, "BOOL": 8, "F8_E4M3": 8, "F4": 4, "F128": 0, "": 0} {
		if got := dtype.Bits(); got != want {
			t.Errorf("%s: %d bits, want %d", dtype, got, want)
		}
	}
}

// brokenReader fails as a disk does.
type brokenReader struct {
	io.ReaderAt
	from int64
	err  error
}

func (r brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.from {
		return 0, r.err
	}
	return r.ReaderAt.ReadAt(p, off)
}

func TestParseHeaderReadErrors(t *testing.T) {
	file := blob(entry("U8", "[1]", "[0,1]"), 1)
	for _, from := range []int64{0, 8} {
		for _, fault := range []error{io.ErrClosedPipe, io.EOF} {
			want := fault.Error()
			if fault == io.EOF {
				want = io.ErrUnexpectedEOF.Error()
			}
			_, err := ParseHeader(brokenReader{bytes.NewReader(file), from, fault}, int64(len(file)))
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("reading fails at %d: error %v, want %s", from, err, want)
			}
		}
	}
}

func manyTensors(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	for i := range n {
		fmt.Fprintf(&b, `,"model.layers.%d.mlp.experts.down_proj.weight":{"dtype":"BF16","shape":[2,1],"data_offsets":[%d,%d]}`,
			i, 4*i, 4*i+4)
	}
	b.WriteString("}")
	return blob(b.String(), 4*n)
}

func BenchmarkParseHeader100k(b *testing.B) {
	file := manyTensors(100_000)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		h, err := parse(file)
		if err != nil || len(h.Tensors) != 100_000 {
			b.Fatal(err)
		}
	}
}

// tiles checks anew, without the parser's own code, that the tensors of an
// accepted header cover a file of size bytes exactly.
func tiles(h *Header, size int64) error {
	if len(h.Names) != len(h.Tensors) {
		return fmt.Errorf("%d names for %d tensors", len(h.Names), len(h.Tensors))
	}
	var sum int64
	end := h.DataOffset
	for _, name := range h.Names {
		t, ok := h.Tensors[name]
		if !ok || t.Name != name {
			return fmt.Errorf("name %q leads to tensor %q", name, t.Name)
		}
		if h.DataOffset+t.Begin != end || t.End < t.Begin {
			return fmt.Errorf("tensor %q is at %d to %d, want it from %d", name, t.Begin, t.End, end-h.DataOffset)
		}
		end = h.DataOffset + t.End
		bits := int64(t.Dtype.Bits())
		for _, axis := range t.Shape {
			bits *= int64(axis)
		}
		if bits != 8*(t.End-t.Begin) {
			return fmt.Errorf("tensor %q takes %d bits, has %d bytes", name, bits, t.End-t.Begin)
		}
		sum += t.End - t.Begin
	}
	if end != size || h.DataOffset+sum != size {
		return fmt.Errorf("tensors end at %d of %d and take %d bytes", end, size, sum)
	}
	return nil
}

func FuzzParseHeader(f *testing.F) {
	for _, test := range accepted {
		f.Add(test.file)
	}
	for _, test := range malformed {
		if len(test.file) < 10_000 {
			f.Add(test.file)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := parse(file)
		if err != nil {
			return
		}
		if err := tiles(h, int64(len(file))); err != nil {
			t.Error(err)
		}
		if !json.Valid(file[8:h.DataOffset]) {
			t.Error("accepted what encoding/json refuses")
		}
		if _, err := parse(append(file[:len(file):len(file)], 0)); err == nil {
			t.Error("accepted with a byte more")
		}
	})
}
