package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const (
	libraries = "../../.setup/lib"
	tinyModel = "../../models/testdata/zimage-ordinary/model" // pictures of multiples of 8 pixels
	// these make multiples of 16, and the editors take pictures from 64 pixels
	tinyFlux    = "../../models/testdata/flux1-dev-small/model"
	tinySchnell = "../../models/testdata/flux1-schnell-ordinary/model"
	tinyEditor  = "../../models/testdata/flux2-klein/model"
	tinyBase    = "../../models/testdata/flux2-klein-base/model" // with guidance
	tinyQwen    = "../../models/testdata/qwen-image-ordinary/model"
	// these take pictures of any size
	tinyQwenEdit = "../../models/testdata/qwen-edit/model"
	tinyQwenPlus = "../../models/testdata/qwen-edit-plus/model"
	pictures     = "../../picture/testdata"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gomflux": main})
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return abs
}

func TestInternalError(t *testing.T) {
	got := internalError("index out of range [3]\n\non the MLX thread:\ngoroutine 7 [running]:")
	if want := "gomflux: internal error: index out of range [3] (this is a bug: please report it"; !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}

func TestEscaped(t *testing.T) {
	for s, want := range map[string]string{
		"plain é 你\n\n\tlines": "plain é 你\n\n\tlines",
		"a\x1b[31m\r\x00":      `a\x1b[31m\r\x00`,
		"\x9b\u009b\u202e\xff": `\x9b\u009b\u202e\xff`,
		"\ufffd\\x":            "\ufffd\\x",
	} {
		if got := escaped(s); got != want {
			t.Errorf("%q is shown as %q, expected %q", s, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		310 * time.Millisecond: "0.31 s", 12400 * time.Millisecond: "12.4 s", 200*time.Second + 400*time.Millisecond: "3 min 20 s",
	} {
		if got := seconds(d); got != want {
			t.Errorf("seconds(%v) = %q, expected %q", d, got, want)
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
