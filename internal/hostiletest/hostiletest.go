// Package hostiletest is for tests with damaged and hostile files.
package hostiletest

import (
	"encoding/json"
	"os"
	"runtime"
	"testing"
	"time"
)

// Bounded runs f and fails the test if f uses too much memory or time.
func Bounded(t testing.TB, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	f()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Errorf("allocated %d MiB", n>>20)
	}
	if took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

// A Config is a component's config, read over its defaults.
type Config interface{ Validate() error }

// FuzzConfig checks that a model can be declared from every config that Validate
// accepts. files are the corpus. config returns the defaults, and declare creates
// the model.
func FuzzConfig[C Config](f *testing.F, config func() C, declare func(C), files ...string) {
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
			declare(c)
		}
	})
}
