package hints

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// The planted faults in package parity are the test of all other hints.

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		got, want []int
		guess     string
	}{
		{[]int{3, 4}, []int{1, 3, 4}, "a batch axis"},
		{[]int{2, 1, 3}, []int{2, 3}, "axes of length 1"},
		{[]int{1, 4, 5, 3}, []int{1, 3, 4, 5}, "transposed"},
		{[]int{1, 6, 16}, []int{1, 4, 4, 6}, "packed"},
		{[]int{1, 8, 4}, []int{2, 8, 4}, "half as many"},
		{[]int{1, 9, 4}, []int{1, 12, 4}, "axis 1 has 9, the reference's 12"},
	} {
		if guess := Shapes(c.got, c.want); !strings.Contains(guess, c.guess) {
			t.Errorf("%v for %v: %q, expected %q", c.got, c.want, guess, c.guess)
		}
	}
}

func TestExplainShapes(t *testing.T) {
	mlxtest.Do(t, func() {
		count := func(from, to float64) *mlx.Array { return mlx.Arange(from, to, 1, mlx.Float32).Reshape(-1, 8) }
		for _, c := range []struct {
			name      string
			got, want *mlx.Array
			hint      string
		}{
			{"negative.embeds", count(0, 40), count(16, 40), "dropped prefix"},
			{"negative.embeds", count(0, 40), count(15, 39), ""},
		} {
			name, err := hooks.ParseName(c.name)
			if err != nil {
				t.Fatal(err)
			}
			key := ""
			for _, h := range ExplainShapes(Question{Name: name, Ours: c.got, Reference: c.want}) {
				key = h.Key
			}
			if key != c.hint {
				t.Errorf("%s, %v of %v: hint %q, expected %q", c.name, c.got.Shape(), c.want.Shape(), key, c.hint)
			}
		}
	})
}
