package cli

import (
	"strings"
	"testing"
)

func TestInternalError(t *testing.T) {
	got := InternalError("index out of range [3]\n\non the MLX thread:\ngoroutine 7 [running]:")
	want := "gomflux: internal error: index out of range [3] (this is a bug: please report it"
	if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}
