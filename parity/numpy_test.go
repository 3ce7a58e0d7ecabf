package parity

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/report"
)

// arraysOf reads all tensors of a golden's files.
func arraysOf(t *testing.T, run string) []*checkpoint.Array {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(run, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all []*checkpoint.Array
	for _, name := range files {
		f, err := checkpoint.OpenArrays(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range f.Tensors() {
			a, err := f.Read(x.Name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, a)
		}
		f.Close()
	}
	return all
}

// asNumPy writes a golden's dump with its tensors in .npz and .npy files, without a list of files.
func asNumPy(t *testing.T, run string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "zimage-ordinary", "dump")
	if err := os.MkdirAll(filepath.Join(out, "tensors"), 0o777); err != nil {
		t.Fatal(err)
	}
	all := arraysOf(t, run)
	write := func(name string, arrays ...*checkpoint.Array) {
		t.Helper()
		if err := checkpoint.WriteFile(filepath.Join(out, name), arrays, nil); err != nil {
			t.Fatal(err)
		}
	}
	write("most.npz", all[2:]...)
	double, err := all[0].Cast(checkpoint.F64) // which NumPy writes if it is not told otherwise
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join("tensors", double.Name+".npy"), double)
	write(filepath.Join("tensors", "one.npz"), all[1])

	text, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	delete(settings, "files")
	if text, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "settings.json"), text, 0o666); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNumPyRun replays and compares a run whose tensors NumPy may have written.
func TestNumPyRun(t *testing.T) {
	run := asNumPy(t, ordinary)
	o := Options{Dtype: exact, Model: filepath.Join(ordinary, "..", "model"), Readings: []string{report.Isolated}, quick: true}
	r, err := Replay(context.Background(), run, o)
	if err != nil {
		t.Fatal(err)
	}
	was, err := Replay(context.Background(), ordinary, o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || len(r.Tensors) != len(was.Tensors) || len(was.Tensors) < 300 {
		t.Errorf("%d tensors, expected %d: %+v", len(r.Tensors), len(was.Tensors), r.Verdict)
	}
	if err := os.Remove(filepath.Join(run, "settings.json")); err != nil {
		t.Fatal(err)
	}
	for _, sides := range [][2]string{{run, ordinary}, {ordinary, run}} {
		d, err := DiffRuns(context.Background(), sides[0], sides[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Verdict.OK || len(d.Tensors) < 200 { // aliases are in settings.json
			t.Errorf("%q: %d tensors: %+v", sides, len(d.Tensors), d.Verdict)
		}
	}
	_, err = Replay(context.Background(), run, o)
	if err == nil || !strings.Contains(err.Error(), "cannot be replayed: it has no settings.json") {
		t.Errorf("a run without settings: %v", err)
	}
	if err := os.WriteFile(filepath.Join(run, "settings.json"), []byte(`{"prompt": "x", "width": 24}`), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = Replay(context.Background(), run, o)
	if err == nil || !strings.Contains(err.Error(), "its settings.json has no height, steps (") {
		t.Errorf("a run with few settings: %v", err)
	}
}

// TestNumPyRunRefuses has folders with files that cannot be read.
func TestNumPyRunRefuses(t *testing.T) {
	arrays := func(name string) []byte {
		data, err := os.ReadFile("../internal/checkpoint/testdata/arrays/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var pickled, bomb bytes.Buffer
	z := zip.NewWriter(&pickled)
	w, err := z.Create("x.npy")
	if err == nil {
		_, err = w.Write(arrays("objects.npy"))
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	// The sizes in the directory are what the reader believes, so the zeros need not be there.
	z = zip.NewWriter(&bomb)
	if _, err := z.CreateRaw(&zip.FileHeader{Name: "x.npy", Method: zip.Deflate, UncompressedSize64: 2 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	cut := arrays("stored.npz")
	for name, c := range map[string]struct {
		file string
		data []byte
		err  string
	}{
		"objects":   {"x.npy", arrays("objects.npy"), "x.npy: header: dtype \"|O\": Python objects are not supported"},
		"pickled":   {"x.npz", pickled.Bytes(), `x.npz: array "x": header: dtype "|O": Python objects are not supported`},
		"bomb":      {"x.npz", bomb.Bytes(), "x.npz: its arrays expand to more than 1073741824 bytes, of a file of "},
		"truncated": {"x.npz", cut[:len(cut)/2], "x.npz: not a complete .npz file"},
		"no tensor": {"x.npz", []byte("PNG"), "x.npz: not a safetensors file"},
		"nothing":   {"x.txt", nil, "not the folder of a run: it has neither settings.json nor tensors"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), c.data, 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := DiffRuns(context.Background(), dir, ordinary, nil)
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), dir) {
			t.Errorf("%s: found %v, expected %q", name, err, c.err)
		}
	}
}

// TestFortranOrder compares one array in both orders of NumPy.
func TestFortranOrder(t *testing.T) {
	folders := map[string]string{}
	for _, name := range []string{"c", "fortran"} {
		data, err := os.ReadFile("../internal/checkpoint/testdata/arrays/" + name + ".npy")
		if err != nil {
			t.Fatal(err)
		}
		folders[name] = t.TempDir()
		if err := os.WriteFile(filepath.Join(folders[name], "latents.npy"), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	r, err := DiffRuns(context.Background(), folders["c"], folders["fortran"], nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || len(r.Tensors) != 1 || r.Tensors[0].Free.Max != 0 {
		t.Errorf("%+v", r.Verdict)
	}
}
