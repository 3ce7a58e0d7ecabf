// Package attacktest is for tests with damaged and hostile files.
package attacktest

import (
	"runtime"
	"testing"
	"time"
)

// Bounded runs f and fails the test if it takes more memory or time than a
// damaged file is worth.
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
