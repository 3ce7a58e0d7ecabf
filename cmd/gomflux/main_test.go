package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/models/tuning"
)

const (
	libraries = "../../.setup/lib"
	tinyModel = "../../models/testdata/zimage-ordinary/model" // pictures of multiples of 8 pixels
	// these make multiples of 16, and the editor takes images from 64 pixels
	tinyFlux   = "../../models/testdata/flux1-dev-small/model"
	tinyEditor = "../../models/testdata/flux2-klein/model"

	pictures     = "../../picture/testdata"
	tinyDecoder  = "../../vae/testdata/tiny-preview" // for the latents of tinyModel
	otherDecoder = "../../vae/testdata/tiny-thin"    // for 5 channels
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "gomflux" { // scripts have a cache folder of their own
		os.Setenv(tuning.Env, "0") // no test depends on a profile of this machine
		os.Setenv(envPromptCache, "0")
	}
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
	want := "gomflux: internal error: index out of range [3] (this is a bug: please report it"
	if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}

func TestNumbered(t *testing.T) {
	for i, want := range []string{"a.b/c.png", "a.b/c_1.png", "a.b/c_2.png"} {
		if got := numbered("a.b/c.png", i); got != want {
			t.Errorf("number %d is %s, expected %s", i, got, want)
		}
	}
}
