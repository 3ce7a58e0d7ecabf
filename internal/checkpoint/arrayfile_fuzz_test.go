package checkpoint

import (
	"archive/zip"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// readAll reads all of a file of the fuzzer's. What is accepted must be what
// its headers say, and no larger than the file allows.
func readAll(t *testing.T, data []byte, most int) {
	f := &ArrayFile{Path: "x"}
	if f.parse(bytes.NewReader(data), int64(len(data))) != nil {
		return
	}
	for _, i := range f.Tensors() {
		x, err := f.Read(i.Name)
		if err != nil {
			continue
		}
		if len(x.Data) != x.Len()*x.Dtype.Size() || len(x.Data) > most {
			t.Fatalf("%v of %d bytes out of a file of %d", x, len(x.Data), len(data))
		}
		s, _, err := f.Stats(i.Name, 1)
		if want := x.Stats(); err != nil || s != want && !math.IsNaN(float64(s.Min)) {
			t.Fatalf("statistics %v, %v, expected %v", s, err, want)
		}
	}
}

func addFiles(f *testing.F, pattern string) {
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		f.Fatalf("no %s", pattern)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func FuzzNPY(f *testing.F) {
	addFiles(f, "testdata/arrays/*.npy")
	f.Fuzz(func(t *testing.T, data []byte) { readAll(t, data, len(data)) })
}

func FuzzNPZ(f *testing.F) {
	addFiles(f, "testdata/arrays/*.npz")
	// deflate makes at most 1032 bytes of one
	f.Fuzz(func(t *testing.T, data []byte) { readAll(t, data, 1100*len(data)) })
}

// FuzzMember puts a .npy file of any content into a .npz file.
func FuzzMember(f *testing.F) {
	addFiles(f, "testdata/arrays/*.npy")
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, _ := z.CreateHeader(&zip.FileHeader{Name: "x.npy"})
		w.Write(data)
		z.Close()
		readAll(t, b.Bytes(), len(data))
	})
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"a.npy", "a.safetensors:latents@8@f32", "a:b@c", "x.npz:y:in.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			return
		}
		again, err := ParseReference(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %+v, and that written is %q, which is %+v, %v", s, r, r.String(), again, err)
		}
	})
}
