package filehash

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestSHA256(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("abc"), 0o666); err != nil {
		t.Fatal(err)
	}
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-2, B.1
	if got, err := SHA256(t.Context(), path); err != nil || got != want {
		t.Errorf("found %s (%v), expected %s", got, err, want)
	}
	for path, want := range map[string]error{filepath.Join(dir, "b"): syscall.ENOENT, dir: syscall.EISDIR} {
		if _, err := SHA256(t.Context(), path); err != want {
			t.Errorf("error %v, expected %v", err, want)
		}
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := SHA256(ctx, path); err != stop {
		t.Errorf("error %v, expected %v", err, stop)
	}
}
