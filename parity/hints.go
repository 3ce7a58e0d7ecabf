package parity

import (
	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
)

func (r *replay) hints(name string, tap hooks.Tap, got, want *mlx.Array) []Hint { return nil }
