// Package randtest has random numbers for tests: the same in every run, so that
// a test does not fail by chance.
package randtest

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// seed is changed by commits only. The environment variable replaces it, as make nightly does.
const (
	seed     = 1
	variable = "GOMFLUX_TEST_SEED"
)

// New returns a generator of the seed and the test's name.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	n := uint64(seed)
	if text := os.Getenv(variable); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		t.Logf("%s=%d repeats these random numbers", variable, n)
	}
	name := fnv.New64a()
	name.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(n, name.Sum64()))
}

// Times returns how often a test repeats what depends on moments: often with a seed of
// the environment, and seldom without.
func Times(seldom, often int) int {
	if os.Getenv(variable) != "" {
		return often
	}
	return seldom
}

// Some returns what go test -short, as CI runs it, tests of the cases: each nth, always the
// same ones. Without -short, as in make nightly, it returns all.
func Some[C any](n int, cases []C) (some []C) {
	if !testing.Short() {
		return cases
	}
	for i := 0; i < len(cases); i += n {
		some = append(some, cases[i])
	}
	return some
}
