package checkpoint

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestZeroFinder checks that parts of a file that were never written are found, and that zeros that
// belong to a model are not taken for them.
func TestZeroFinder(t *testing.T) {
	const rows, row = 1024, 2048 // bytes of a matrix
	const matrix = rows * row
	list := []Tensor{
		{Name: "a.bias", Dtype: BF16, Shape: []int{1024}}, {Name: "a.weight", Dtype: BF16, Shape: []int{1024, 1024}},
		{Name: "b.bias", Dtype: BF16, Shape: []int{1024}}, {Name: "b.weight", Dtype: BF16, Shape: []int{1024, 1024}},
		{Name: "c.bias", Dtype: BF16, Shape: []int{1024}}, {Name: "c.weight", Dtype: BF16, Shape: []int{2, 512, 1024}},
		{Name: "d.weight", Dtype: BF16, Shape: []int{1024, 128, 2, 4}},
	}
	size := 4*matrix + 3*row
	a, b, c, d := row, 2*row+matrix, 3*row+2*matrix, 3*row+3*matrix // where the weights begin
	random := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(random)
	for _, test := range []struct {
		name  string
		zeros [][2]int // from, to
		found string   // "" if nothing is
	}{
		{"intact", nil, ""},
		{"second half", [][2]int{{size / 2, size}}, "4.2 MB of zeros at byte "},
		{"first half", [][2]int{{0, size/2 - 500}}, "from tensor a.bias to b.weight"},
		{"part of a matrix", [][2]int{{a + 100*row + 1024, a + 900*row + 512}}, "in tensor a.weight"},
		{"from a matrix to another one", [][2]int{{a + 800*row + 700, b + 600*row}}, "from tensor a.weight to b.weight"},
		{"part of matrices", [][2]int{{c + 100*row + 1024, c + 900*row}}, "in tensor c.weight"},
		{"part of a convolution", [][2]int{{d + 200*row + 300, size}}, "in tensor d.weight"},
		{"everything", [][2]int{{0, size}}, ""},
		{"a short part", [][2]int{{a + 100*row + 1024, a + 200*row}}, ""},
		{"a matrix", [][2]int{{b, b + matrix}}, ""},
		{"a matrix and biases", [][2]int{{b - row, b + matrix + row}}, ""},
		{"two matrices", [][2]int{{a, b + matrix}}, ""},
		{"the last matrices", [][2]int{{c, size}}, ""},
		{"the last rows", [][2]int{{a + 200*row, a + matrix}}, ""},
		{"the first rows", [][2]int{{a, a + 900*row}}, ""},
		{"rows between", [][2]int{{a + 10*row, a + 900*row}}, ""},
		{"rows that begin with zeros", [][2]int{{a + 10*row, a + 900*row + 30}}, ""},
		{"last columns and rows", [][2]int{{a + row - 600, a + row}, {a + 2*row - 600, a + 900*row}}, ""},
		{"first columns and rows", [][2]int{{a + 10*row, a + 900*row + 500}, {a + 901*row, a + 901*row + 500}}, ""},
	} {
		data := bytes.Clone(random)
		for _, z := range test.zeros {
			clear(data[z[0]:z[1]])
		}
		name := filepath.Join(t.TempDir(), "x.safetensors")
		w, err := Create(name, list, nil)
		if err == nil {
			if _, err = w.Write(data); err == nil {
				err = w.Close()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(os.DirFS(filepath.Dir(name)), "x.safetensors")
		if err != nil {
			t.Fatal(err)
		}
		finder := ZeroFinder{File: f}
		for _, tensor := range f.Header.Names {
			if err == nil {
				err = finder.Check(f.Header.Tensors[tensor])
			}
		}
		f.Close()
		switch {
		case test.found == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.found != "" && (!errors.Is(err, ErrDamaged) || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), test.found)):
			t.Errorf("%s: %v, expected %q", test.name, err, test.found)
		}
	}
}
