package nn_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
)

// near compares with a tolerance relative to the largest expected value.
func near(t testing.TB, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: found %d elements, expected %d", what, len(got), len(want))
	}
	largest, worst, at := 0.0, 0.0, 0
	for i, w := range want {
		largest = max(largest, math.Abs(w))
		if d := math.Abs(float64(got[i]) - w); !(d <= worst) {
			worst, at = d, i
		}
	}
	if !(worst <= tolerance*largest) {
		t.Errorf("%s: element %d of %d is %v, expected %v (off by %.2g of the largest, allowed %.2g)",
			what, at, len(want), got[at], want[at], worst/largest, tolerance)
	}
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

// A tensor goes into a safetensors file: values are stored as dtype, unless their
// bytes are there.
type tensor struct {
	name, dtype string
	shape       []int
	values      []float32
	raw         []byte
}

// f32 is a tensor of random numbers that bfloat16 holds exactly.
func f32(name string, shape ...int) tensor {
	values := mlxtest.Random(uint64(len(name))+uint64(mlxtest.Size(shape)), mlxtest.Size(shape))
	for i, v := range values {
		values[i] = float32(int(v*16)) / 16
	}
	return tensor{name: name, dtype: "F32", shape: shape, values: values}
}

func (t tensor) as(dtype string) tensor { t.dtype = dtype; return t }

func (t tensor) bytes(test testing.TB) []byte {
	if t.raw != nil {
		return t.raw
	}
	var b bytes.Buffer
	for _, v := range t.values {
		bits := math.Float32bits(v)
		switch t.dtype {
		case "F32":
			binary.Write(&b, binary.LittleEndian, bits)
		case "BF16":
			binary.Write(&b, binary.LittleEndian, uint16(bits>>16))
		case "F16": // enough for multiples of 1/16
			half := uint16(0)
			if v != 0 {
				half = uint16(bits>>16&0x8000) | uint16((bits>>23&0xff)-127+15)<<10 | uint16(bits>>13&0x3ff)
			}
			binary.Write(&b, binary.LittleEndian, half)
		case "U8":
			b.WriteByte(uint8(int(v)))
		case "I32":
			binary.Write(&b, binary.LittleEndian, int32(v))
		default:
			test.Fatalf("no writer for %s", t.dtype)
		}
	}
	return b.Bytes()
}

// save writes a safetensors file and returns its folder.
func save(t testing.TB, tensors ...tensor) string {
	t.Helper()
	dir := t.TempDir()
	saveAs(t, filepath.Join(dir, "model.safetensors"), tensors...)
	return dir
}

func saveAs(t testing.TB, path string, tensors ...tensor) {
	t.Helper()
	header := map[string]any{}
	var data bytes.Buffer
	for _, tensor := range tensors {
		begin := data.Len()
		data.Write(tensor.bytes(t))
		header[tensor.name] = map[string]any{"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": []int{begin, data.Len()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(path, append(append(out, text...), data.Bytes()...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// open opens the checkpoint in a folder.
func open(t testing.TB, dir string) *checkpoint.Checkpoint {
	t.Helper()
	folder, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.OpenCheckpoint(folder, ".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}
