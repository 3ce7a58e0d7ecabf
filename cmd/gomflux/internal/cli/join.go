package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A SplitFlag is the flag --split.
type SplitFlag = Optional[gomflux.Split]

// NewSplitFlag returns the flag, without a value.
func NewSplitFlag() SplitFlag { return OneOf("way", Convert[gomflux.Split](models.Splits)...) }

// AddSplit adds --split of commands that several processes can run together.
func AddSplit(f *pflag.FlagSet, split *SplitFlag) {
	f.Var(split, "split", "how the processes of gomflux launch split the work: pictures, passes, sequence, stages, or auto, "+
		"pictures if there are enough, stages if the model fits no process (default: auto)")
}

// maxJoin is how long the processes may take to connect.
const maxJoin = time.Minute

// Join connects the command with the others that were started together with it, nil if it is alone. Then it
// refuses a split, unless it does the rest of what others began. Only rank 0 writes results: the others write
// messages, as text.
func Join(ctx context.Context, split *gomflux.Split, out *ui.Output) (*gomflux.Group, error) {
	late := time.AfterFunc(maxJoin, func() { // a call of MLX cannot be aborted
		ui.Complain(out.Stderr, fmt.Errorf("the processes have not found each other for %v (is there a firewall, or a cable unplugged?)",
			maxJoin))
		os.Exit(ExitFailure)
	})
	rank.Joining(true)
	group, err := gomflux.Join(ctx)
	rank.Joining(false)
	late.Stop()
	switch {
	case errors.Is(err, gomflux.ErrRequest):
		return nil, Coded(ExitUsage, err)
	case err != nil:
		return nil, Coded(ExitLibrary, err)
	case group.Size() == 1 && split != nil && *split != gomflux.AutoSplit && rank.Before() == nil:
		return nil, UsageErrorf("--split %s needs several processes (gomflux launch starts them)", *split)
	case group.Rank() > 0:
		out.Stdout, out.Format = io.Discard, ui.Text
	}
	return group, nil
}

// JoinEngine is [Join] for commands that use the engine itself: it returns its group too, nil for a process that is alone.
func JoinEngine(ctx context.Context, split *gomflux.Split, out *ui.Output) (group *gomflux.Group, g *mlx.Group, err error) {
	if group, err = Join(ctx, split, out); err != nil || group.Size() == 1 {
		return group, nil, err
	}
	err = mlx.Do(ctx, func() (err error) {
		g, err = models.JoinGroup() // the same again
		return err
	})
	return group, g, err
}

// Share returns the value that rank 0 passes.
func Share[T any](ctx context.Context, group *gomflux.Group, v T) (T, error) {
	all, err := Gather(ctx, group, v)
	if err != nil {
		return v, err
	}
	return all[0], nil
}

// Gather returns the values that the processes pass, by their ranks.
func Gather[T any](ctx context.Context, group *gomflux.Group, v T) ([]T, error) {
	if group.Size() == 1 {
		return []T{v}, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	texts, err := group.Gather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return all, nil
}
