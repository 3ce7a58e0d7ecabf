package nn_test

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/mlx/nn"
)

// TestCheckConfig checks each kind of range, in embedded structs too.
func TestCheckConfig(t *testing.T) {
	type inner struct {
		Layers int     `json:"num_layers" layers:"1"`
		Eps    float64 `json:"eps" number:"nonnegative"`
	}
	type config struct {
		inner
		Dim    int     `json:"dim" size:"0"`
		Even   int     `json:"even" size:"2" multiple:"2"`
		Theta  float64 `json:"theta" number:"positive"`
		Factor float64 `json:"factor" number:"nonzero"`
		Free   int     `json:"free"`
	}
	for _, test := range []struct {
		change func(c *config)
		want   string
	}{
		{func(c *config) {}, ""},
		{func(c *config) { c.Layers, c.Dim, c.Free = nn.MaxLayers, nn.MaxDim, -1 }, ""},
		{func(c *config) { c.Layers = 0 }, "num_layers 0: expected 1 to 1000"},
		{func(c *config) { c.Layers = nn.MaxLayers + 1 }, "num_layers 1001: expected 1 to 1000"},
		{func(c *config) { c.Dim = -1 }, "dim -1: expected 0 to 1048576"},
		{func(c *config) { c.Dim = nn.MaxDim + 1 }, "dim 1048577: expected 0 to 1048576"},
		{func(c *config) { c.Even = 0 }, "even 0: expected 2 to 1048576"},
		{func(c *config) { c.Even = 3 }, "even 3: expected a multiple of 2"},
		{func(c *config) { c.Eps = -1 }, "eps -1: must not be negative"},
		{func(c *config) { c.Eps = math.NaN() }, "eps NaN: must not be negative"},
		{func(c *config) { c.Theta = 0 }, "theta 0: must be positive"},
		{func(c *config) { c.Theta = math.NaN() }, "theta NaN: must be positive"},
		{func(c *config) { c.Factor = 0 }, "factor 0: must not be zero"},
	} {
		c := config{inner: inner{Layers: 1}, Even: 2, Theta: 1, Factor: -1}
		test.change(&c)
		found := ""
		if err := nn.CheckConfig(&c); err != nil {
			found = err.Error()
		}
		if found != test.want {
			t.Errorf("%+v: found %q, expected %q", c, found, test.want)
		}
	}
}
