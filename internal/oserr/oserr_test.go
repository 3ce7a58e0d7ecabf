package oserr

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestBare(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	_, path := os.Open(gone)
	other := errors.New("other")
	for _, test := range []struct {
		err  error
		want string
	}{
		{path, "no such file or directory"},
		{os.Rename(gone, gone+"2"), "no such file or directory"},
		{fmt.Errorf("reading: %w", path), "no such file or directory"},
		{other, "other"},
	} {
		if got := Bare(test.err); got.Error() != test.want || !errors.Is(test.err, got) {
			t.Errorf("%v became %v, expected %s", test.err, got, test.want)
		}
	}
	if err := Bare(nil); err != nil {
		t.Error(err)
	}
}

func TestNoEOF(t *testing.T) {
	other := errors.New("other")
	for err, want := range map[error]error{io.EOF: io.ErrUnexpectedEOF, io.ErrUnexpectedEOF: io.ErrUnexpectedEOF, other: other, nil: nil} {
		if got := NoEOF(err); got != want {
			t.Errorf("%v became %v, expected %v", err, got, want)
		}
	}
}
