package mlx_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/mlx"
)

// Four processes gather and add over the whole ring, in pairs of neighbours of both kinds, and with
// messages that are larger than the buffers of a socket.
func TestGroup(t *testing.T) {
	if !grouptest.Member() {
		for _, n := range []int{2, 4} {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				for rank, got := range grouptest.Run(t, n) {
					if want := fmt.Sprintf("rank %d of %d", rank, n); string(got) != want {
						t.Errorf("rank %d wrote %q, want %q", rank, got, want)
					}
				}
			})
		}
		return
	}
	err := mlx.Do(context.Background(), func() error {
		g, err := mlx.JoinGroup("ring")
		if err != nil {
			return err
		}
		const elements = 1 << 20
		check := func(name string, got *mlx.Array, want ...float32) {
			t.Helper()
			rows := got.Reshape(len(want), -1)
			if low, high := rows.Min(1).Floats(), rows.Max(1).Floats(); !slices.Equal(low, want) || !slices.Equal(high, want) {
				t.Errorf("rank %d: %s: from %v to %v, want %v", g.Rank(), name, low, high, want)
			}
		}
		mine := mlx.Full(float64(g.Rank()+1), mlx.Float32, 1, elements)
		if g.Size() == 2 {
			check("all", g.AllGather(mine), 1, 2)
			check("sum", g.AllSum(mine), 3)
			check("split", g.Split([][]int{{0}, {1}}).AllGather(mine), float32(g.Rank()+1))
		} else {
			check("all", g.AllGather(mine), 1, 2, 3, 4)
			check("sum", g.AllSum(mine), 10)
			near, far := g.Split([][]int{{0, 1}, {2, 3}}), g.Split([][]int{{0, 3}, {1, 2}})
			for range 3 {
				if g.Rank() < 2 {
					check("near", near.AllGather(mine), 1, 2)
				} else {
					check("near", near.AllGather(mine), 3, 4)
				}
				check("near, then far", far.AllSum(near.AllSum(mine)), 10)
			}
		}
		return os.WriteFile(grouptest.Output(), fmt.Appendf(nil, "rank %d of %d", g.Rank(), g.Size()), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestJoinGroupErrors(t *testing.T) {
	t.Setenv("MLX_RANK", "0")
	err := mlx.Do(t.Context(), func() error {
		_, err := mlx.JoinGroup("carrier-pigeon")
		return err
	})
	if err == nil {
		t.Error("no error for an unknown backend")
	}
	t.Log(err)
}
