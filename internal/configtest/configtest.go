// Package configtest fuzzes the configs of model components.
package configtest

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gomflux/gomflux/mlx/nn"
)

// A Config is a component's config, read over its defaults.
type Config interface{ Validate() error }

// Fuzz holds that a config which Validate accepts can be declared as a model.
// The files are the corpus; config makes the defaults, and declare a model of
// what was read over them.
func Fuzz[C Config](f *testing.F, config func() C, declare func(C) any, files ...string) {
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := config()
		if json.Unmarshal(text, c) == nil && c.Validate() == nil {
			nn.Bind(declare(c), "model", nil)
		}
	})
}
