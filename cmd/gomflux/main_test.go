package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/models/tuning"
)

const (
	libraries = "../../.setup/lib"
	tinyModel = "../../models/testdata/zimage-ordinary/model" // pictures of multiples of 8 pixels
	// these make multiples of 16, and the editors take images from 64 pixels
	tinyFlux    = "../../models/testdata/flux1-dev-small/model"
	tinySchnell = "../../models/testdata/flux1-schnell-ordinary/model"
	tinyEditor  = "../../models/testdata/flux2-klein/model"
	tinyBase    = "../../models/testdata/flux2-klein-base/model" // with guidance
	tinyQwen    = "../../models/testdata/qwen-image-ordinary/model"
	tinyKrea    = "../../models/testdata/krea-2/model"
	tinyKreaRaw = "../../models/testdata/krea-2-raw/model"
	// these take images of any size
	tinyKontext  = "../../models/testdata/flux1-kontext/model"
	tinyFill     = "../../models/testdata/flux1-fill/model"
	tinyQwenEdit = "../../models/testdata/qwen-edit/model"
	tinyQwenPlus = "../../models/testdata/qwen-edit-plus/model"
	// these make multiples of 32
	tinyQwen21      = "../../models/testdata/qwen-image-21/model"
	tinyQwen21Turbo = "../../models/testdata/qwen-image-21-turbo/model"

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
