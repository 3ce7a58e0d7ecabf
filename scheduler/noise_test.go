package scheduler_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/gomflux/gomflux/scheduler"
)

// TestTorch compares the noise with testdata/noise.json, which python -m gomflux_reference noise
// scheduler/testdata/noise.json makes. It has the first 4 and the last 20 values of long noise.
func TestTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/noise.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Seed   uint64
			N      int
			Values []float64
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 50 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	worst := 0.0
	for _, c := range file.Cases {
		got := scheduler.TorchNoise(c.Seed, c.N)
		if len(got) != c.N {
			t.Fatalf("%d values, expected %d", len(got), c.N)
		}
		if c.N > len(c.Values) {
			got = append(got[:4:4], got[c.N-20:]...)
		}
		for i, want := range c.Values {
			off := math.Abs(float64(got[i]) - want)
			worst = max(worst, off)
			if off > 4e-6 { // by which PyTorch differs between processors
				t.Fatalf("seed %d, %d values: value %d is %v, expected %v", c.Seed, c.N, i, got[i], want)
			}
		}
	}
	t.Logf("off by at most %.1e", worst)
}
