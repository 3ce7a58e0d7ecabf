package report

import (
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// A channel of tens of millions must not hide the others.
func TestChannels(t *testing.T) {
	got, want := make([]float32, 3*64), make([]float32, 3*64)
	for i, v := range mlxtest.Random(1, len(want)) {
		want[i] = v
		if i%3 == 1 {
			want[i] *= 4e7
		}
		got[i] = want[i]
		if i%3 == 2 {
			got[i] *= 1.01
		}
	}
	d := Compare(got, want)
	if !d.Within(Float32) {
		t.Errorf("%v: expected that the whole hides it", d)
	}
	d.Channel, d.ChannelAt = worstChannel(got, want, []int{64, 3}, 1)
	if d.ChannelAt != 2 || math.Abs(float64(d.Channel)-0.01) > 1e-4 ||
		d.Within(DefaultTable().For(mlx.BackendCPU, "float32", "step", Isolated, "x")) {
		t.Errorf("channel %d is off by %v", d.ChannelAt, d.Channel)
	}
}

func TestCompare(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tests := []struct {
		name      string
		got, want []float32
		max, ref  float64
		at        int
		within    bool
	}{
		{"equal", []float32{1, -8, 3}, []float32{1, -8, 3}, 0, 8, 0, true},
		{"rounding", []float32{1, -8.00005, 3}, []float32{1, -8, 3}, 5e-5, 8, 1, true},
		{"the wrong GELU", []float32{1, -8, 3.0006}, []float32{1, -8, 3}, 6e-4, 8, 2, false},
		{"around zero", []float32{9e-8, 0}, []float32{0, 0}, 9e-8, 0, 0, true},
		{"above the floor", []float32{2e-7, 0}, []float32{0, 0}, 2e-7, 0, 0, false},
		{"many small errors", slices.Repeat([]float32{1.000015}, 100), slices.Repeat([]float32{1}, 100), 1.5e-5, 1, 0, false},
		{"NaN", []float32{1, nan}, []float32{1, 2}, 0, 1, 1, false},
		{"NaN in the reference", []float32{1, 2}, []float32{1, nan}, 0, 1, 1, false},
		{"infinite", []float32{inf, 2}, []float32{1, 2}, 0, 2, 0, false},
		{"nothing", nil, nil, 0, 0, 0, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Compare(test.got, test.want)
			if math.Abs(float64(d.Max)-test.max) > 0.03*test.max || float64(d.MaxRef) != test.ref || d.At != test.at {
				t.Errorf("%v", d)
			}
			if d.Within(Float32) != test.within {
				t.Errorf("%v: within the tolerance is %v, expected %v", d, !test.within, test.within)
			}
		})
	}
}
