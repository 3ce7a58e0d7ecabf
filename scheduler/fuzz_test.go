package scheduler_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/scheduler"
)

// FuzzSchedule checks that a config that Validate accepts gives a schedule of finite sigmas that
// do not rise, or an error.
func FuzzSchedule(f *testing.F) {
	files, err := filepath.Glob("../models/testdata/*/model/scheduler/scheduler_config.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no configs, %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, 256)
	}
	f.Add([]byte(`{"shift": 1e308, "num_train_timesteps": 9223372036854775807}`), 1)
	f.Add([]byte(`{"use_dynamic_shifting": true, "base_shift": -1e308, "max_shift": 1e308}`), 1<<30)
	f.Fuzz(func(t *testing.T, text []byte, tokens int) {
		var c scheduler.ModelConfig
		if json.Unmarshal(text, &c) != nil || c.Validate() != nil || tokens < 1 {
			return
		}
		for _, name := range append(scheduler.Names(), "") {
			sampler, err := c.New(name, scheduler.LinearSigmas(4), c.DynamicShift().Mu(tokens))
			if err != nil {
				continue
			}
			s := sampler.Schedule()
			for i, sigma := range s.Sigmas {
				if !(sigma >= 0) || math.IsInf(float64(sigma), 0) || i > 0 && sigma > s.Sigmas[i-1] {
					t.Fatalf("%s: sigmas %v of %s", s.Name, s.Sigmas, text)
				}
			}
			for _, at := range s.Timesteps {
				if math.IsNaN(float64(at)) || math.IsInf(float64(at), 0) {
					t.Fatalf("%s: timesteps %v of %s", s.Name, s.Timesteps, text)
				}
			}
		}
	})
}
