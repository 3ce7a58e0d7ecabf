package family

import (
	"reflect"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestTimeTable checks the rows, and which of them are computed together.
func TestTimeTable(t *testing.T) {
	long := make([]float32, 40)
	for i := range long {
		long[i] = float32(1000 - i)
	}
	tests := []struct {
		name             string
		timesteps, steps []float32 // of the schedule, and those that are asked for
		every            []float32 // rows that belong to every step
		calls            [][]float32
	}{
		{"in order", []float32{3, 2, 1}, []float32{3, 2, 1}, nil, [][]float32{{3, 2, 1}}},
		{"each twice", []float32{3, 2, 1}, []float32{3, 3, 2, 2, 1, 1}, nil, [][]float32{{3, 2, 1}}},
		{"begun late", []float32{3, 2, 1}, []float32{2, 1}, nil, [][]float32{{2, 1}}},
		{"two evaluations of a step", []float32{3, 2, 2, 1, 1}, []float32{3, 2, 2, 1, 1}, nil, [][]float32{{3, 2, 1}}},
		{"with a row of every step", []float32{3, 2, 1}, []float32{3, 1}, []float32{7}, [][]float32{{3, 2, 1}}},
		{"not in the schedule", []float32{3, 2}, []float32{5, 3, 2}, nil, [][]float32{{5, 3, 2}}},
		{"long", long, long, []float32{7}, [][]float32{long[:32], long[32:]}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				var calls [][]float32
				table := &TimeTable{
					Timesteps: func() []float32 { return test.timesteps },
					Compute: func(timesteps []float32) *mlx.Array {
						calls = append(calls, slices.Clone(timesteps))
						all := slices.Concat(timesteps, test.every)
						return mlx.FromFloat32(all, len(all), 1).Times(10)
					},
				}
				for _, step := range test.steps {
					want := []float32{10 * step}
					for _, x := range test.every {
						want = append(want, 10*x)
					}
					mlxtest.Same(t, "row", mlx.Scope(func() *mlx.Array { return table.Row(step) }).Floats(), want)
				}
				if !reflect.DeepEqual(calls, test.calls) {
					t.Errorf("computed %v, expected %v", calls, test.calls)
				}
				table.Free()
				if table.Free(); table.rows != nil {
					t.Error("the rows are not freed")
				}
			})
		})
	}
	if (*TimeTable)(nil).Row(1) != nil {
		t.Error("a table that is nil has rows")
	}
}
