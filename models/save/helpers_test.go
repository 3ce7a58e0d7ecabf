package save_test

import (
	"image"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/save"
	"github.com/gomflux/gomflux/picture"
)

// source returns the model in a folder, without further information.
func source(t *testing.T, dir string) save.Source {
	t.Helper()
	found, err := catalog.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	return save.Source{FS: found.FS, Name: dir, Folder: dir}
}

// saveNew saves the model in a folder to a new one.
func saveNew(t *testing.T, dir string, o save.Options) (string, *save.Report) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "saved")
	report, err := save.Model(source(t, dir), to, o)
	if err != nil {
		t.Fatal(err)
	}
	return to, report
}

// stored are the tensors of a component's files by name.
func stored(t *testing.T, dir, component string) map[string]*checkpoint.Array {
	t.Helper()
	return modeltest.Read(t, filepath.Join(dir, component))
}

// latentsWith are what the model in a folder makes of noise.
func latentsWith(t *testing.T, dir string, o models.LoadOptions) []float32 {
	t.Helper()
	o.Dtype = new(mlx.Float32) // in which what was quantized is computed as what was not, on GPUs too
	p, err := models.Load(source(t, dir).FS, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := models.Request{Prompt: "a red hat", Height: 64, Width: 32, Steps: 2, MaxSequenceLength: 48, Seed: 1}
	if r.Inpaint = p.LeastInpaint(image.NewRGBA(image.Rect(0, 0, 32, 64))); p.Check(r) != nil { // of a model that must be shown something
		r.References = []image.Image{picture.Opaque(image.NewRGBA(image.Rect(0, 0, 32, 32)))}
	}
	var last models.Latents
	r.OnStep = func(s models.Step) error { last = s.Latents; return nil }
	res, err := p.Generate(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.Image.Pix { // the autoencoder's part of it
		last.Data = append(last.Data, float32(v))
	}
	return last.Data
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
