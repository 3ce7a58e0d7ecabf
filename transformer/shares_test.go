package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// members is the group over which the forward passes of goldens are split; nil for one process.
var members *mlx.Group

// Members of a group compute the goldens of diffusers together, each a share of the tokens: outputs, and
// the tensors of all modules, are as exact as those of one process. The cases have odd numbers of tokens,
// fewer text tokens than members, reference images, batches, grouped queries, prefixes and KV caches.
func TestSplitOver2(t *testing.T) { testSplit(t, 2) }
func TestSplitOver4(t *testing.T) { testSplit(t, 4) }

func testSplit(t *testing.T, n int) {
	if !grouptest.Member() {
		grouptest.Run(t, n)
		return
	}
	mlxtest.Do(t, func() {
		var err error
		if members, err = mlx.JoinGroup("ring"); err != nil {
			t.Fatal(err)
		}
	})
	for _, family := range []func(*testing.T){TestFlux, TestFlux2, TestQwenImage, TestQwenImage21, TestKrea2, TestCosmos} {
		family(t)
	}
}
