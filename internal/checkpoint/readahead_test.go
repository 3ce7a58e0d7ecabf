package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// writeSparse writes a file of U8 tensors, whose bytes are zeros, in this order.
func writeSparse(t *testing.T, path string, names []string, sizes []int64) {
	t.Helper()
	var header bytes.Buffer
	at := int64(0)
	for i, name := range names {
		fmt.Fprintf(&header, `%c"%s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, "{,"[min(i, 1)], name, sizes[i], at, at+sizes[i])
		at += sizes[i]
	}
	header.WriteString("}")
	var file bytes.Buffer
	binary.Write(&file, binary.LittleEndian, uint64(header.Len()))
	file.Write(header.Bytes())
	if err := os.WriteFile(path, file.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(file.Len())+at); err != nil {
		t.Fatal(err)
	}
}

func TestReadAhead(t *testing.T) {
	const mib = 1 << 20
	path := filepath.Join(t.TempDir(), "model.safetensors")
	writeSparse(t, path, []string{"a", "b", "c", "d", "e"}, []int64{5 * mib, 3 * mib, 7 * mib, 1 * mib, 2*mib + 5})
	for _, c := range []struct {
		name  string
		use   []string // tensors of the component
		limit int64
		cut   int64 // new size of the file, 0 for none
		want  int64
	}{
		{"all", []string{"a", "b", "c", "d", "e"}, 1 << 40, 0, 18*mib + 5},
		{"limit", []string{"a", "b", "c", "d", "e"}, 6 * mib, 0, 6 * mib},
		{"a small gap", []string{"c", "e"}, 1 << 40, 0, 10*mib + 5},
		{"a large gap", []string{"b", "e"}, 1 << 40, 0, 5*mib + 5},
		{"nothing", nil, 1 << 40, 0, 0},
		{"no limit left", []string{"a"}, 0, 0, 0},
		{"cut short", []string{"a", "b"}, 1 << 40, 2 * mib, 2 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys, err := OpenFolder(filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			ck, err := OpenCheckpoint(fsys, ".")
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			tensors := ck.Tensors
			ck.Tensors = map[string]Tensor{}
			for _, name := range c.use {
				ck.Tensors[name] = tensors[name]
			}
			if c.cut > 0 {
				if err := os.Truncate(path, ck.Files[0].Header.DataOffset+c.cut); err != nil {
					t.Fatal(err)
				}
			}
			if n := ck.readRanges(c.limit, make(chan struct{})); n != c.want {
				t.Errorf("%d bytes, expected %d", n, c.want)
			}
			stop := ck.ReadAhead(c.limit)
			if n := stop(); n > c.want || n != stop() {
				t.Errorf("%d bytes until it was stopped, expected at most %d, and the same again", n, c.want)
			}
		})
	}
}
