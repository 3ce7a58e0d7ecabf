package mlx_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// safetensors returns the text of a file with float32 vectors.
func safetensors(t testing.TB, tensors map[string][]float32) []byte {
	header := map[string]any{}
	var data bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		begin := data.Len()
		if err := binary.Write(&data, binary.LittleEndian, tensors[name]); err != nil {
			t.Fatal(err)
		}
		header[name] = map[string]any{"dtype": "F32", "shape": []int{len(tensors[name])}, "data_offsets": []int{begin, data.Len()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(out, text...), data.Bytes()...)
}
