package report

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// FuzzTable: tolerances that are accepted are numbers.
func FuzzTable(f *testing.F) {
	f.Add([]byte(`{"rules": [{"tensor": "vae.*", "max": 1e-3, "device": "cpu"}, {"l2": 0}]}`))
	f.Add([]byte(`{"rules": [{"tensor": "[", "max": 1}]}`))
	f.Add([]byte(`{"rules": [{"max": -1}, {"atol": 1e999}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := parseTable(text)
		if err != nil {
			return
		}
		for _, r := range table.Rules {
			for _, v := range []*Number{r.Max, r.L2, r.Channel, r.ATol, r.RTol, r.OffByOne} {
				if v != nil && (!(*v >= 0) || math.IsInf(float64(*v), 0)) {
					t.Errorf("%g in %s", *v, text)
				}
			}
		}
		table.For(mlx.BackendCPU, "float32", "vae", Own, "vae.decoder")
	})
}
