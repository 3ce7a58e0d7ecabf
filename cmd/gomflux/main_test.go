package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/models/tuning"
)

const (
	libraries = "../../.setup/lib"
	tinyModel = "../../models/testdata/zimage-ordinary/model" // pictures of multiples of 8 pixels
	// these make multiples of 16, and the editor takes images from 64 pixels
	tinyFlux   = "../../models/testdata/flux1-dev-small/model"
	tinyEditor = "../../models/testdata/flux2-klein/model"
	tinySeer   = "../../models/testdata/qwen-edit/model" // whose language model sees images

	pictures     = "../../picture/testdata"
	tinyDecoder  = "../../vae/testdata/tiny-preview" // for the latents of tinyModel
	otherDecoder = "../../vae/testdata/tiny-thin"    // for 5 channels
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "gomflux" { // scripts have a cache folder of their own
		os.Setenv(tuning.Env, "0") // no test depends on a profile of this machine
		os.Setenv(cli.EnvPromptCache, "0")
	}
	testscript.Main(m, map[string]func(){"gomflux": main, "ssh": standInSSH})
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return abs
}
