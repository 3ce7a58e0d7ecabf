package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
)

func TestSource(t *testing.T) {
	ctx := context.Background()
	want, err := open(t, nil).Generate(ctx, options(1))
	if err != nil {
		t.Fatal(err)
	}
	folder, err := gomflux.Find(tiny)
	if err != nil {
		t.Fatal(err)
	}
	if folder.Name() != tiny || folder.Path() != tiny || folder.Revision() != "" || folder.BaseModel() != "" ||
		folder.Defaults() != nil || folder.Err() != nil {
		t.Errorf("%q at %q, revision %q, base %q, defaults %+v, error %v", folder.Name(), folder.Path(), folder.Revision(),
			folder.BaseModel(), folder.Defaults(), folder.Err())
	}
	embedded := gomflux.SourceFS(os.DirFS(tiny))
	if embedded.Name() != "" || embedded.Path() != "" {
		t.Errorf("a file system's model has the name %q and the path %q", embedded.Name(), embedded.Path())
	}
	for name, open := range map[string]func() (*gomflux.Model, error){
		"a folder":           func() (*gomflux.Model, error) { return folder.Open(ctx, onCPU(nil)) },
		"a file system":      func() (*gomflux.Model, error) { return embedded.Open(ctx, onCPU(nil)) },
		"OpenFS":             func() (*gomflux.Model, error) { return gomflux.OpenFS(ctx, os.DirFS(tiny), onCPU(nil)) },
		"the source's files": func() (*gomflux.Model, error) { return gomflux.OpenFS(ctx, folder.FS(), onCPU(nil)) },
	} {
		m, err := open()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := m.Generate(ctx, options(1))
		m.Close()
		if err != nil || !bytes.Equal(got.Image.Pix, want.Image.Pix) {
			t.Errorf("%s: another picture, %v", name, err)
		}
	}

	shapes, err := gomflux.Find("shapes")
	if err != nil {
		t.Fatal(err)
	}
	if d := shapes.Defaults(); shapes.Name() != "shapes" || shapes.Path() != "" || d == nil || d.Steps != 12 || d.Width != 256 {
		t.Errorf("the built-in model %q at %q has %+v", shapes.Name(), shapes.Path(), d)
	}
	if _, err := fs.Stat(shapes.FS(), "model_index.json"); err != nil {
		t.Error(err)
	}

	t.Setenv("HF_HUB_CACHE", t.TempDir())
	for _, name := range []string{"", "nowhere", "z-image-turbo", "somebody/something"} {
		s, err := gomflux.Find(name)
		if s != nil || !errors.Is(err, gomflux.ErrNotFound) && name != "" || err == nil {
			t.Errorf("%q: found %v, %v", name, s, err)
		}
	}
	if _, err := gomflux.FindWith(tiny, tiny); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("a base model for a whole one: %v", err)
	}
}

// TestSourceOfParts checks that a folder that cannot be completed is found, with the reason
// why it cannot be opened.
func TestSourceOfParts(t *testing.T) {
	ctx := context.Background()
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	parts := modeltest.Copy(t, "models/testdata/flux2-klein/model/transformer") // of a model that is not here
	s, err := gomflux.Find(parts)
	if err != nil {
		t.Fatal(err)
	}
	if s.Err() == nil || !strings.Contains(s.Err().Error(), parts) {
		t.Fatalf("error %v of a folder without most of a model", s.Err())
	}
	if _, err := fs.Stat(s.FS(), "config.json"); err != nil {
		t.Errorf("what it has cannot be looked at: %v", err)
	}
	if _, err := s.Open(ctx, nil); !errors.Is(err, s.Err()) {
		t.Errorf("Open: error %v, expected %v", err, s.Err())
	}
	if _, err := s.Save(ctx, filepath.Join(t.TempDir(), "saved"), nil); !errors.Is(err, s.Err()) {
		t.Errorf("Save: error %v, expected %v", err, s.Err())
	}
	if _, err := gomflux.Open(ctx, parts, nil); err == nil || err.Error() != s.Err().Error() {
		t.Errorf("Open by name: error %v, expected %v", err, s.Err())
	}
	if _, err := s.OpenVAE(ctx, nil); err == nil {
		t.Error("an autoencoder was opened in a folder without one")
	}
}

// TestSingleFile: a file that holds a transformer is completed with another model,
// which the settings name.
func TestSingleFile(t *testing.T) {
	ctx := context.Background()
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	bare, _, _ := modeltest.SingleFiles(t, tiny)
	if s, err := gomflux.Find(bare); err == nil {
		t.Errorf("%s is found without a base model: %v", bare, s.Err())
	}
	s, err := gomflux.FindWith(bare, tiny)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name() != bare || s.Path() != bare || s.BaseModel() != tiny {
		t.Errorf("%q at %q with %q", s.Name(), s.Path(), s.BaseModel())
	}
	want, err := open(t, nil).Generate(ctx, options(1))
	if err != nil {
		t.Fatal(err)
	}
	m, err := gomflux.Open(ctx, bare, onCPU(&gomflux.OpenOptions{BaseModel: tiny}))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got, err := m.Generate(ctx, options(1))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
		t.Error("another picture")
	}
	if o := gomflux.OpenOptionsFrom(&got.Settings); got.Settings.Model != bare || o.BaseModel != tiny {
		t.Errorf("the settings name %q and %q", got.Settings.Model, o.BaseModel)
	}
}

// TestDefaults: those of OpenOptions win over the model's own.
func TestDefaults(t *testing.T) {
	d := gomflux.Defaults{Steps: 2, Guidance: 1.5, NegativePrompt: "blurry", Height: 16, Width: 24, MaxSequenceLength: 64}
	m := open(t, &gomflux.OpenOptions{Defaults: &d})
	if m.Defaults() != d {
		t.Errorf("found %+v, expected %+v", m.Defaults(), d)
	}
	r, err := m.Generate(context.Background(), gomflux.Options{Prompt: "a red circle"})
	if err != nil {
		t.Fatal(err)
	}
	s := r.Settings
	if got := (gomflux.Defaults{Steps: s.Steps, Guidance: s.Guidance, NegativePrompt: s.NegativePrompt, Height: s.Height,
		Width: s.Width, MaxSequenceLength: s.MaxSequenceLength}); got != d {
		t.Errorf("a picture with %+v, expected %+v", got, d)
	}
}
