package models

import (
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hub"
)

func TestDownloadText(t *testing.T) {
	p := hub.Progress{Here: 45e6, Bytes: 105e6, PerSecond: 2e6, Left: 30 * time.Second}
	if got, want := downloadText(p), "45.0 MB of 105.0 MB, 2.0 MB/s, 30.0 s left"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
}
