package scheduler_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/scheduler"
)

// TestSigmas has the sigmas of the published Turbo LoRA for FLUX.2-dev, and what diffusers' Flux2Pipeline makes of them for
// 1024x1024 pixels, with mu of its compute_empirical_mu.
func TestSigmas(t *testing.T) {
	const text = "1,0.6509,0.4374,0.2932,0.1893,0.1108,0.0495,0.00031"
	s, err := scheduler.ParseSigmas(strings.ReplaceAll(text, ",", ", "))
	if err != nil {
		t.Fatal(err)
	}
	if s.String() != text {
		t.Errorf("text %s", s)
	}
	config := modelConfig(t, `{"shift": 3, "use_dynamic_shifting": true}`)
	made, err := config.New("", s.Float32(), 2.2678904387254573)
	if err != nil {
		t.Fatal(err)
	}
	want := []float64{1, 0.9473941922187805, 0.8824843764305115, 0.8002723455429077, 0.6928176879882812, 0.5461916923522949,
		0.3346729278564453, 0.0029862751252949238, 0}
	got := made.Schedule().Sigmas
	if len(got) != len(want) {
		t.Fatalf("sigmas %v", got)
	}
	for i := range want {
		if math.Abs(float64(got[i])-want[i]) > 1e-7 {
			t.Errorf("sigma %d is %g, expected %g", i, got[i], want[i])
		}
	}
	if err := config.TakesSigmas(""); err != nil {
		t.Error(err)
	}
	if err := config.TakesSigmas("heun"); err == nil || !strings.Contains(err.Error(), "spaces its sigmas itself") {
		t.Errorf("error %v", err)
	}
}

func TestSigmasRefused(t *testing.T) {
	for _, text := range []string{"", "1,x", "1,1", "0.5,0.6", "1.1,0.5", "1,0", "1,NaN", "-1", "1,,0.5"} {
		if s, err := scheduler.ParseSigmas(text); err == nil {
			t.Errorf("%q: %v", text, s)
		}
	}
	if s := scheduler.Sigmas(nil); s.String() != "" || s.Check() != nil {
		t.Errorf("nil is %q", s)
	}
}
