// Package modeltest reads small models and writes files as other programs would,
// for tests.
package modeltest

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// Read reads the tensors of a component's folder, by their names.
func Read(t testing.TB, folder string) map[string]*checkpoint.Array {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no safetensors in %s (%v)", folder, err)
	}
	read := map[string]*checkpoint.Array{}
	for _, name := range files {
		readFile(t, name, read)
	}
	return read
}

// readFile adds the tensors of a file.
func readFile(t testing.TB, path string, to map[string]*checkpoint.Array) {
	t.Helper()
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, info := range f.Tensors() {
		if to[info.Name], err = f.Read(info.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// Stored are tensors of diffusers' names as a layout has them.
func Stored(t testing.TB, table *layout.Table, from map[string]*checkpoint.Array) map[string]*checkpoint.Array {
	t.Helper()
	parts := map[string]map[int]*checkpoint.Array{}
	for name, tensor := range from {
		other, rule, part := table.Other(name)
		stored := &checkpoint.Array{Name: other, Dtype: tensor.Dtype, Shape: tensor.Shape, Data: tensor.Data}
		if table.ChannelsLast && len(stored.Shape) > 3 && len(rule.Transforms) == 0 {
			channelsLast(stored)
		}
		for _, form := range slices.Backward(rule.Transforms) {
			switch form {
			case checkpoint.TransformSwap:
				half := len(stored.Data) / 2
				stored.Data = slices.Concat(stored.Data[half:], stored.Data[:half])
			case checkpoint.TransformSqueeze:
				stored.Shape = append(slices.Clone(stored.Shape), 1, 1)
			case checkpoint.TransformExpand:
				stored.Shape = stored.Shape[:len(stored.Shape)-1]
			case checkpoint.TransformSixRows:
				stored.Shape = []int{stored.Shape[0] * stored.Shape[1]}
			default:
				t.Fatalf("%s: no test has the form %s yet", name, form)
			}
		}
		if parts[other] == nil {
			parts[other] = map[int]*checkpoint.Array{}
		}
		if parts[other][part] != nil {
			t.Fatalf("%s: two tensors are part %d of %s", name, part, other)
		}
		parts[other][part] = stored
	}
	made := map[string]*checkpoint.Array{}
	for other, list := range parts {
		whole := list[0]
		for i := 1; i < len(list); i++ {
			if list[i] == nil || whole == nil {
				t.Fatalf("%s: of %d parts not all are there", other, len(list))
			}
			shape := slices.Clone(whole.Shape)
			shape[0] += list[i].Shape[0]
			whole = &checkpoint.Array{Name: other, Dtype: whole.Dtype, Shape: shape, Data: slices.Concat(whole.Data, list[i].Data)}
		}
		made[other] = whole
	}
	return made
}

// channelsLast moves the second axis behind the last.
func channelsLast(t *checkpoint.Array) {
	out, in := t.Shape[0], t.Shape[1]
	size := t.Dtype.Size()
	pixels := len(t.Data) / size / out / in
	data := make([]byte, 0, len(t.Data))
	for o := range out {
		for p := range pixels {
			for i := range in {
				at := ((o*in+i)*pixels + p) * size
				data = append(data, t.Data[at:at+size]...)
			}
		}
	}
	t.Shape, t.Data = slices.Concat(t.Shape[:1], t.Shape[2:], t.Shape[1:2]), data
}

// Write writes a file of tensors, by what is before their names.
func Write(t testing.TB, path string, metadata map[string]string, byPrefix map[string]map[string]*checkpoint.Array) {
	t.Helper()
	var all []*checkpoint.Array
	for prefix, list := range byPrefix {
		for name, tensor := range list {
			all = append(all, &checkpoint.Array{Name: prefix + name, Dtype: tensor.Dtype, Shape: tensor.Shape,
				Data: bytes.Clone(tensor.Data)})
		}
	}
	if err := checkpoint.WriteFile(path, all, metadata); err != nil {
		t.Fatal(err)
	}
}

// Retype gives the tensors of one dtype in a file another of the same size.
func Retype(t testing.TB, path, from, to string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	header, rest := data[8:8+n], data[8+n:]
	header = bytes.ReplaceAll(header, []byte(`"`+from+`"`), []byte(`"`+to+`"`))
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	data = slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header, rest)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}
