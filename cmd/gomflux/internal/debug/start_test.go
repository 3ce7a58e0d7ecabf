package debug

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAbsoluteSource(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"mine":               "mine",
		"latents@0":          "latents@0",
		"a.npz:x@f16":        dir + "/a.npz:x@f16",
		"/tmp/a.safetensors": "/tmp/a.safetensors",
		"../b/c.npy":         filepath.Join(dir, "../b/c.npy"),
		"=":                  "=",
	} {
		if got := absoluteSource(source); got != want {
			t.Errorf("%s is %s, expected %s", source, got, want)
		}
	}
}
