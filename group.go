package gomflux

import (
	"context"
	"encoding/binary"
	"os"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A Split is a way to split the work of generating images over the processes of a [Group].
type Split string

const (
	// AutoSplit stands for SplitPasses, or SplitSequence without classifier-free guidance; for SplitStages if some
	// process has too little memory for the model, and all have enough for a stage.
	AutoSplit Split = models.SplitAuto
	// SplitPictures means that each process generates images of its own, as if it were alone: those of
	// which the index modulo Group.Size is Group.Rank, say. [Group.Gather] brings results together.
	SplitPictures Split = models.SplitPictures
	// SplitPasses splits classifier-free guidance: half of the processes run the model for the prompt, the other
	// half for the negative prompt. With two, the image is that of one process, bit for bit.
	SplitPasses Split = models.SplitPasses
	// SplitSequence splits the tokens of the transformer. Images can differ from those of one process by
	// rounding.
	SplitSequence Split = models.SplitSequence
	// SplitStages splits the blocks of the transformer and of text encoders: each process loads some, and runs them
	// while the others wait. The image is that of one process, bit for bit.
	SplitStages Split = models.SplitStages
)

// A Group is several processes that generate images together, on one machine or several. A nil Group is a
// process that is alone.
type Group struct{ group *mlx.Group }

// Join connects this process with those that gomflux launch or mlx.launch started together with it, and waits
// for all of them. MLX's environment variables describe them: MLX_RANK and, for MLX's backend ring (TCP),
// MLX_HOSTFILE; MLX_WORLD_SIZE, NCCL_HOST_IP and NCCL_PORT for nccl; MLX_IBV_DEVICES and
// MLX_JACCL_COORDINATOR for jaccl. Without MLX_RANK the process is alone, and Join returns nil. Processes with
// other versions of gomflux or MLX are an error. Join may be called once.
//
// All processes of a group must open the same models and generate the same images in the same order, except
// with [SplitPictures]. If one of them cannot open a model or begin an image, none does, and if the context of one
// is done, all stop after the same step. A process that waits for one that has ended, or that failed in a step,
// cannot be cancelled: it waits until it is ended, as gomflux launch does.
func Join(ctx context.Context) (*Group, error) {
	if os.Getenv("MLX_RANK") == "" { // the library is not needed
		return nil, nil
	}
	g := &Group{}
	err := mlx.Do(ctx, func() (err error) {
		if g.group, err = models.JoinGroup(); err != nil {
			return err
		}
		return models.Agree(g.group, []models.Field{{Name: "the version of gomflux", Value: Version()},
			{Name: "the version of MLX", Value: mlx.Version()}}, nil)
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Rank is the number of this process in its group, from 0.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.group.Rank()
}

// Size is the number of processes in the group.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.group.Size()
}

// Gather returns the data that each process passes, by their ranks. All processes of the group call it at the
// same time, and get the same.
func (g *Group) Gather(ctx context.Context, data []byte) ([][]byte, error) {
	if g == nil {
		return [][]byte{data}, nil
	}
	return onMLX(ctx, func() ([][]byte, error) { return g.group.Gather(data), nil })
}

// agree returns an error in all processes of the group if one of them passes an error, unless it is one that all know.
// All call it at the same time.
func (g *Group) agree(failed error) error {
	if g.Size() == 1 {
		return failed
	}
	return mlx.Do(context.Background(), func() error { return models.Agree(g.group, nil, failed) })
}

// seed returns the seed of rank 0.
func (g *Group) seed(ctx context.Context, own uint64) (uint64, error) {
	all, err := g.Gather(ctx, binary.LittleEndian.AppendUint64(nil, own))
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(all[0]), nil
}

// A SplitEstimate is what a [Group] can expect of a split.
type SplitEstimate struct {
	Split Split // which AutoSplit stands for
	// Speedup is how many times as fast as one process the group computes a step, from its FLOPs, the bytes that are
	// exchanged, and the measured speeds of both. It is 0 if that is not known.
	Speedup   float64
	Bandwidth float64 // bits per second between the processes
}

// EstimateSplit measures the connection of the model's group for a moment, and estimates what the split of some
// options brings. All processes of the group call it at the same time, and get the same.
func (m *Model) EstimateSplit(ctx context.Context, o Options) (SplitEstimate, error) {
	r := request(m.pipeline, o)
	split, n, err := m.pipeline.SplitOf(&r)
	if err != nil || n < 2 {
		return SplitEstimate{Split: Split(split)}, err
	}
	return onMLX(ctx, func() (e SplitEstimate, err error) {
		link, err := m.pipeline.MeasureLink()
		if err != nil {
			return e, err
		}
		speedup, err := m.pipeline.Speedup(r, link)
		return SplitEstimate{Split(split), speedup, link.Bandwidth}, err
	})
}
