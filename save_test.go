package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux"
)

func TestSave(t *testing.T) {
	ctx := context.Background()
	folder := filepath.Join(t.TempDir(), "saved")
	var written int64
	r, err := gomflux.Save(ctx, tiny, folder, &gomflux.SaveOptions{
		Quantize: "4", GroupSize: 32, Device: "cpu", LoRAs: []gomflux.LoRA{{Path: ofTiny(t, 1), Scale: 0.5}},
		Progress: func(p gomflux.Progress) {
			if p.Phase == gomflux.PhaseSave {
				written = p.Bytes
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Folder != folder || r.Layout != "mflux" || r.Quantization != "4" || len(r.LoRAs) != 1 || len(r.Layers) == 0 || written != r.Bytes {
		t.Errorf("%d bytes were written, and the report is %+v", written, r)
	}
	made := func(name string) []byte {
		m, err := gomflux.Open(ctx, name, &gomflux.OpenOptions{Device: "cpu"})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		result, err := m.Generate(ctx, options(7))
		if err != nil {
			t.Fatal(err)
		}
		return result.Image.Pix
	}
	first := made(folder)
	if _, err := gomflux.Save(ctx, tiny, folder, nil); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("a folder that is there: %v", err)
	}
	// over itself: nothing of it is read once it is replaced
	if r, err = gomflux.Save(ctx, folder, folder, &gomflux.SaveOptions{Overwrite: true, Dtype: "keep"}); err != nil || !r.Layers[0].Kept {
		t.Fatalf("over itself: %+v, %v", r, err)
	}
	if !bytes.Equal(made(folder), first) {
		t.Error("saved over itself it is another model")
	}
	if _, err := gomflux.Save(ctx, tiny, folder, &gomflux.SaveOptions{Overwrite: true}); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(folder))
	if err != nil || len(left) != 1 {
		t.Errorf("beside it there is %v, %v", left, err)
	}

	for name, o := range map[string]gomflux.SaveOptions{
		"a quantization": {Quantize: "2"}, "a layout": {Layout: "other"}, "a dtype": {Dtype: "int8"}, "a group": {GroupSize: 32},
		"a quantization of diffusers": {Quantize: "4", Layout: "diffusers"},
	} {
		if _, err := gomflux.Save(ctx, tiny, filepath.Join(t.TempDir(), "new"), &o); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("%s that there is not: %v", name, err)
		}
	}
	if _, err := gomflux.Save(ctx, "nowhere", folder, nil); !errors.Is(err, gomflux.ErrNotFound) {
		t.Errorf("a model that is not there: %v", err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	target := filepath.Join(t.TempDir(), "stopped")
	if _, err := gomflux.Save(stopped, tiny, target, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(target)); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}
