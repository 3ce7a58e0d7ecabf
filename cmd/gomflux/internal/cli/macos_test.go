package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/macos"
	"github.com/gomflux/gomflux/mlx"
)

func TestDoctorMacOS(t *testing.T) {
	m4 := mlx.DeviceInfo{Device: mlx.GPU, Name: "Apple M4", Architecture: "applegpu_g16g"}
	m5 := mlx.DeviceInfo{Device: mlx.GPU, Name: "Apple M5 Max", Architecture: "applegpu_g17s"}
	unnamed := mlx.DeviceInfo{Device: mlx.GPU, Architecture: "applegpu_g18g"}
	old, first, newer := macos.Version{Major: 15}, macos.Version{Major: 26, Minor: 2}, macos.Version{Major: 26, Minor: 4}
	for _, c := range []struct {
		name   string
		facts  macOSFacts
		json   string
		line   string
		advice []string // parts of it
	}{
		{"not macOS", macOSFacts{gpu: m5, library: old}, `null`, "", nil},
		{"no accelerators", macOSFacts{newer, old, "", m4},
			`{"version":"26.4","library_minimum":"15.0","neural_accelerators":"none"}`,
			"26.4, MLX built for 15.0 and newer; neural accelerators: none", nil},
		{"used", macOSFacts{newer, first, "", m5},
			`{"version":"26.4","library_minimum":"26.2","neural_accelerators":"used"}`,
			"26.4, MLX built for 26.2 and newer; neural accelerators: used", nil},
		{"an older library", macOSFacts{newer, old, "/a/mlx/lib/libmlx.dylib", m5},
			`{"version":"26.4","library_minimum":"15.0","neural_accelerators":"unused"}`,
			"26.4, MLX built for 15.0 and newer; neural accelerators: unused",
			[]string{"M5 Max without its neural accelerators: MLX in /a/mlx/lib is built for macOS 15.0", "make setup",
				"unset GOMFLUX_MLX"}},
		{"an older macOS", macOSFacts{macos.Version{Major: 26, Minor: 1}, old, "", m5},
			`{"version":"26.1","library_minimum":"15.0","neural_accelerators":"unused"}`,
			"26.1, MLX built for 15.0 and newer; neural accelerators: unused",
			[]string{"M5 Max without its neural accelerators: macOS is 26.1, and they need 26.2 (to use them: update macOS"}},
		{"a library that does not say", macOSFacts{system: newer, gpu: unnamed},
			`{"version":"26.4","neural_accelerators":"unknown"}`, "26.4; neural accelerators: unknown", nil},
		{"a GPU without a name", macOSFacts{newer, old, "/a/libmlx.dylib", unnamed},
			`{"version":"26.4","library_minimum":"15.0","neural_accelerators":"unused"}`,
			"26.4, MLX built for 15.0 and newer; neural accelerators: unused",
			[]string{"GPU applegpu_g18g without its neural accelerators: MLX in /a is built"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			info, advice := c.facts.Describe()
			if text, err := json.Marshal(info); err != nil || string(text) != c.json {
				t.Errorf("%s, %v, expected %s", text, err, c.json)
			}
			var page ui.Page
			info.Lines(page.Fields(7))
			if line := strings.TrimSpace(strings.TrimPrefix(page.String(), "macos")); line != c.line {
				t.Errorf("line %q, expected %q", line, c.line)
			}
			if (advice == "") != (c.advice == nil) || strings.Contains(advice, "\n") {
				t.Errorf("advice %q", advice)
			}
			for _, part := range c.advice {
				if !strings.Contains(advice, part) {
					t.Errorf("advice %q, expected %q in it", advice, part)
				}
			}
		})
	}
}
