package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	if Held(path) {
		t.Error("held before it is there")
	}
	release, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(path); err != ErrHeld || !Held(path) {
		t.Errorf("taken twice: error %v, held: %v", err, Held(path))
	}
	release()
	if Held(path) {
		t.Error("held after its release")
	}
	again, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	again()
	if _, err := Try(filepath.Join(path, "b.lock")); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("error %v below a file", err)
	}
}

func TestTryFolder(t *testing.T) {
	dir := t.TempDir()
	release, err := TryFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryFolder(dir); err != ErrHeld {
		t.Errorf("taken twice: error %v", err)
	}
	release()
	if release, err = TryFolder(dir); err != nil {
		t.Fatal(err)
	}
	release()
	if _, err := TryFolder(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, expected %v", err, fs.ErrNotExist)
	}
}

// TestRemoved holds that the lock of a file which has lost its name is worth
// nothing.
func TestRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !isAt(f, path) {
		t.Error("not found under its name")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if isAt(f, path) {
		t.Error("found under a name that it has lost")
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if isAt(f, path) {
		t.Error("found under a name that another file has")
	}
}

func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "a.lock")
	release, err := Wait(t.Context(), path, func() { t.Error("waits for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := Wait(ctx, path, func() { cancel(stop) }); err != stop {
		t.Errorf("error %v, expected %v", err, stop)
	}
	told := 0
	go func() {
		time.Sleep(300 * time.Millisecond)
		release()
	}()
	again, err := Wait(t.Context(), path, func() { told++ })
	if err != nil || told != 1 {
		t.Fatalf("error %v, and told %d times that it waits", err, told)
	}
	again()
}
