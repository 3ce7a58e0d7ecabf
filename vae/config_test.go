package vae_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gomflux/gomflux/nn"
	"github.com/gomflux/gomflux/vae"
)

// FuzzConfig: a config that Validate accepts can be declared as a model.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{
		"../models/testdata/zimage-ordinary/model/vae/config.json",
		"../models/testdata/vae-512/model/vae/config.json",
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := vae.DefaultKLConfig()
		if json.Unmarshal(text, &c) != nil || c.Validate() != nil {
			return
		}
		nn.Bind(vae.NewKL(c), "model", nil)
	})
}
