package pulls

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/engine"
)

const repo = "me/mine"

// A fixture is a puller with a fake hub.
type fixture struct {
	*Puller
	hub   *hubtest.Hub
	ended chan Status
}

func start(t *testing.T, edit func(*Config)) *fixture {
	t.Helper()
	f := &fixture{ended: make(chan Status, 10), hub: hubtest.New(t, repo, map[string][]byte{
		"model_index.json":                        []byte(`{"_class_name": "Test", "vae": ["diffusers", "AutoencoderKL"]}`),
		"vae/config.json":                         []byte(`{}`),
		"vae/diffusion_pytorch_model.safetensors": make([]byte, 1<<20),
		"README.md":                               []byte("---\nlicense: mit\n---\n"),
	})}
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("HF_HOME", cache)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_ENDPOINT", f.hub.URL)
	c := Config{
		Models: func() []Model {
			return []Model{
				{Name: "mine", Repo: repo, Command: "gomflux pull mine"},
				{Name: "other", Repo: "me/other", Licence: family.Licence{Name: "MIT"}, Command: "gomflux pull other"},
			}
		},
		Client: hub.NewClient,
		Ended:  func(s Status) { f.ended <- s },
	}
	if edit != nil {
		edit(&c)
	}
	f.Puller = New(c)
	t.Cleanup(f.Close)
	return f
}

// half waits until a download has fetched some of the large file.
func half(t *testing.T, d *Pull) Status {
	t.Helper()
	for s := range d.Watch(t.Context()) {
		if s.Here >= 1<<18 {
			return s
		}
	}
	t.Fatalf("the download ended: %+v", d.Status())
	return Status{}
}

// end returns the last status of a download.
func end(t *testing.T, d *Pull) (last Status) {
	t.Helper()
	for last = range d.Watch(t.Context()) {
	}
	return last
}

// TestResume cancels a download in the middle, and downloads the rest with a new puller.
func TestResume(t *testing.T) {
	p := start(t, nil)
	release, begin := p.hub.Hold()
	plan, err := p.Plan(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	if plan.Here != 0 || plan.Bytes < 1<<20 || plan.Model.Licence.Name != "mit" || plan.Space != nil {
		t.Errorf("plan %+v", plan)
	}
	d, err := p.Start("mine", "ann")
	if err != nil {
		t.Fatal(err)
	}
	half(t, d)
	if again, err := p.Start("mine", "bob"); again != d || err != nil {
		t.Errorf("a second start of the same model: %v", err)
	}
	if _, err := p.Start("other", "bob"); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "mine is under way") {
		t.Errorf("a second model: %v", err)
	}
	if err := d.Cancel("bob"); !errors.Is(err, ErrNotOwner) || d.Status().State != engine.Running {
		t.Errorf("canceled by another client: %v", err)
	}
	if err := d.Cancel("ann"); err != nil {
		t.Error(err)
	}
	if s := end(t, d); s.State != engine.Canceled || s.Err != nil || s.Ended.IsZero() {
		t.Errorf("canceled: %+v", s)
	}
	if s := <-p.ended; s.State != engine.Canceled {
		t.Errorf("reported: %+v", s)
	}
	p.Close()
	if _, err := p.Start("mine", ""); !errors.Is(err, ErrRefused) {
		t.Errorf("started after Close: %v", err)
	}

	if begin() != 0 {
		t.Errorf("the download began at %d", begin())
	}
	release()
	p.Puller = New(p.Config)
	if d, err = p.Start("mine", ""); err != nil {
		t.Fatal(err)
	}
	s := end(t, d)
	if s.State != engine.Done || s.Here != s.Bytes || s.Bytes != plan.Bytes {
		t.Errorf("resumed: %+v", s)
	}
	if begin() < 1<<18 {
		t.Errorf("resumed from byte %d", begin())
	}
	snapshot := filepath.Join(os.Getenv("HF_HUB_CACHE"), "models--me--mine/snapshots", p.hub.Commit())
	if _, err := os.Stat(filepath.Join(snapshot, "model_index.json")); err != nil {
		t.Error(err)
	}
	if all := p.Pulls(); len(all) != 1 || all[0].ID != s.ID {
		t.Errorf("downloads: %+v", all)
	}
	if found, ok := p.Pull(s.ID); !ok || found != d {
		t.Error("the download is not found by its id")
	}
}

// TestRefused: what is unknown, refused by the configuration or by the hub is not downloaded.
func TestRefused(t *testing.T) {
	p := start(t, nil)
	if _, err := p.Start("someone/else", ""); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
	if _, err := p.Plan(t.Context(), "other"); !errors.Is(err, hub.ErrNoAccess) {
		t.Errorf("plan of a model that the hub does not have: %v", err)
	}
	d, err := p.Start("other", "")
	if err != nil {
		t.Fatal(err)
	}
	if s := end(t, d); s.State != engine.Failed || !errors.Is(s.Err, hub.ErrNoAccess) {
		t.Errorf("a model that the hub does not have: %+v", s)
	}
	p.hub.Set(func() { p.hub.Token = "secret" })
	if _, err := p.Plan(t.Context(), "mine"); !errors.Is(err, hub.ErrNoAccess) || !strings.Contains(err.Error(), "HF_TOKEN") {
		t.Errorf("gated: %v", err)
	}
	p = start(t, func(c *Config) { c.Refusal = "ask the administrator" })
	for _, start := range []func() error{
		func() error { _, err := p.Start("mine", ""); return err },
		func() error { _, err := p.Plan(context.Background(), "mine"); return err },
	} {
		err := start()
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "ask the administrator (gomflux pull mine)") {
			t.Errorf("refused: %v", err)
		}
	}
	if p.hub.Asked("hub", "api") != 0 {
		t.Error("the hub was asked")
	}
	if _, err := os.Stat(filepath.Join(os.Getenv("HF_HUB_CACHE"), "models--me--mine")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was downloaded: %v", err)
	}
}

// TestPullPanics: a panic ends the download, with an id that is in the log.
func TestPullPanics(t *testing.T) {
	var log bytes.Buffer
	f := start(t, func(c *Config) {
		c.Client = func() (*hub.Client, error) { panic("a bug") }
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	d, err := f.Start("mine", "")
	if err != nil {
		t.Fatal(err)
	}
	s := end(t, d)
	want := "internal error (download " + s.ID + " in the server's log)"
	if s.State != engine.Failed || s.Err == nil || s.Err.Error() != want || !strings.Contains(log.String(), s.ID) {
		t.Errorf("%+v, expected %s; log %s", s, want, log.String())
	}
}
