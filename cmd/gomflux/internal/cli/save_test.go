package cli

import (
	"context"
	"errors"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/picture"
)

// TestSaveRescue is for folders that go away while an image is made.
func TestSaveRescue(t *testing.T) {
	rescue := t.TempDir()
	t.Setenv("TMPDIR", rescue)
	img := image.NewRGBA(image.Rect(0, 0, 3, 2))
	settings := &picture.Settings{Generator: "test", Prompt: "x", Steps: 1, Height: 2, Width: 3}
	s := Saver{Overwrite: true, Settings: settings, Sidecar: settings}
	for _, want := range []string{"gomflux-rescued.jpg", "gomflux-rescued_1.jpg"} {
		_, err := s.Save(t.Context(), filepath.Join(t.TempDir(), "gone", "x.jpg"), img)
		if err == nil || !strings.Contains(err.Error(),
			"no such file or directory (the image is saved as "+filepath.Join(rescue, want)+" instead)") {
			t.Fatalf("%v, expected it in %s", err, want)
		}
		if _, err := picture.ReadFile(filepath.Join(rescue, want)); err != nil {
			t.Error(err)
		}
		if _, err := picture.ReadSettingsFile(filepath.Join(rescue, sidecarName(want))); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("TMPDIR", filepath.Join(rescue, "gone"))
	name := filepath.Join(rescue, "gone", "x.jpg")
	if _, err := s.Save(t.Context(), name, img); err == nil || strings.Contains(err.Error(), "the picture is in") {
		t.Errorf("with nowhere to go: %v", err)
	}
}

// TestSaveSidecar: a sidecar that cannot be written is an error that names it,
// and the image is then in one place.
func TestSaveSidecar(t *testing.T) {
	settings := &picture.Settings{Generator: "test", Prompt: "x", Steps: 1, Height: 2, Width: 3}
	for _, overwrite := range []bool{false, true} {
		dir, rescue := t.TempDir(), t.TempDir()
		t.Setenv("TMPDIR", rescue)
		name := filepath.Join(dir, "x.png")
		if err := os.Mkdir(filepath.Join(dir, "x.metadata.json"), 0o777); err != nil {
			t.Fatal(err)
		}
		s := Saver{Overwrite: overwrite, Settings: settings, Sidecar: settings}
		saved, err := s.Save(t.Context(), name, image.NewRGBA(image.Rect(0, 0, 3, 2)))
		if !overwrite { // that name is taken
			if err != nil || saved != filepath.Join(dir, "x_1.png") {
				t.Errorf("saved as %s: %v", saved, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "output "+sidecarName(name)+": ") ||
			!strings.Contains(err.Error(), "the image is saved as "+rescue) {
			t.Errorf("error %v", err)
		}
		if exists(name) {
			t.Error("the image is there as well")
		}
	}
}

// TestSaveInterrupted leaves nothing.
func TestSaveInterrupted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrInterrupted)
	_, err := Saver{}.Save(ctx, filepath.Join(dir, "x.png"), image.NewRGBA(image.Rect(0, 0, 1, 1)))
	if !errors.Is(err, ErrInterrupted) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// TestSaveAtOnce has several processes write under one name, half of them with a
// sidecar: all are kept, and each sidecar is its image's.
func TestSaveAtOnce(t *testing.T) {
	const n = 40
	dir := t.TempDir()
	done := make(chan error)
	for i := range n {
		go func() {
			s := Saver{Settings: &picture.Settings{Generator: "test", Prompt: "x", Seed: uint64(i), Steps: 1, Height: 1, Width: 1}}
			if i%2 == 0 {
				s.Sidecar = s.Settings
			}
			_, err := s.Save(t.Context(), filepath.Join(dir, "x.png"), image.NewRGBA(image.Rect(0, 0, 1, 1)))
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != n+n/2 {
		t.Errorf("%d files, expected %d: %v", len(entries), n+n/2, err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if filepath.Ext(name) != ".png" {
			continue
		}
		found, err := picture.ReadSettingsFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seed := found.Settings.Seed
		if exists(sidecarName(name)) != (seed%2 == 0) {
			t.Errorf("%s of run %d: sidecar %v", e.Name(), seed, exists(sidecarName(name)))
		} else if seed%2 == 0 {
			if beside, err := picture.ReadSettingsFile(sidecarName(name)); err != nil || beside.Settings.Seed != seed {
				t.Errorf("%s of run %d has another one's sidecar: %v", e.Name(), seed, err)
			}
		}
	}
}

func TestSidecarName(t *testing.T) {
	for name, want := range map[string]string{
		"image.png": "image.metadata.json", "a.b/v1.5.JPG": "a.b/v1.5.metadata.json", "image_1.jpeg": "image_1.metadata.json",
	} {
		if got := sidecarName(name); got != want {
			t.Errorf("sidecar of %s is %s, expected %s", name, got, want)
		}
	}
}

func TestNumbered(t *testing.T) {
	for i, want := range []string{"a.b/c.png", "a.b/c_1.png", "a.b/c_2.png"} {
		if got := numbered("a.b/c.png", i); got != want {
			t.Errorf("number %d is %s, expected %s", i, got, want)
		}
	}
}
