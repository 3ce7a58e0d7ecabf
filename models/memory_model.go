package models

import (
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
)

// A pass is a pass of rows of tokens through a component's blocks.
type pass struct {
	blocks component.BlockMemory
	tokens int // in each row
	rows   int // of the batch
	shared int // tokens that all rows have in common, which are computed once
	weightsMemory
}

// A memoryModel predicts the memory that passes allocate on a device, without their weights.
type memoryModel struct {
	device          mlx.Device
	item            int64   // size of an element, in bytes, on average
	lookahead       int64   // bytes that MLX may allocate ahead of the work, 0 for no limit
	commandElements float64 // elements that the kernels of a command buffer read, at most
	commandKernels  float64 // kernels in a command buffer, at most
}

func (p *Pipeline) memoryModel() memoryModel {
	architecture := ""
	if p.mac != nil {
		architecture = p.mac.Architecture
	}
	for _, d := range mlx.Devices() {
		if d.Device == p.device {
			architecture = d.Architecture
		}
	}
	return newMemoryModel(p.device, p.dtype, architecture)
}

func newMemoryModel(device mlx.Device, dtype mlx.Dtype, architecture string) memoryModel {
	m := memoryModel{device: device, item: 2}
	switch dtype {
	case mlx.Float32:
		m.item = 4
	case mlx.Float16:
		m.item = 3 // half of the activations are float32: see nn.Linear.ForwardWide
	}
	m.commandKernels, m.commandElements = commandLimits(architecture)
	return m
}

// blocksOf returns the memory constants of a component's blocks.
func (p *Pipeline) blocksOf(c component.Component) component.BlockMemory {
	if p.blockMemory != nil {
		return p.blockMemory(c)
	}
	return c.Blocks()
}

// commandLimits returns MLX's limits for a command buffer of a GPU: the number of kernels, and the
// number of elements that they read.
func commandLimits(architecture string) (kernels, elements float64) {
	const mi = 1 << 20
	switch architecture {
	case "sm_80":
		return 20, 400 * mi
	case "sm_90", "sm_100", "sm_120":
		return 100, 1000 * mi
	case "sm_121":
		return 20, 25 * mi
	}
	switch {
	case strings.HasPrefix(architecture, "sm_"):
		return 20, 100 * mi
	case strings.HasSuffix(architecture, "s"), strings.HasSuffix(architecture, "d"): // Max and Ultra
		return 50, 50 * mi
	}
	return 40, 40 * mi
}

const (
	overshoot    = 3e8 // bytes by which a single kernel can exceed the limit
	maxCommands  = 11  // command buffers that MLX queues before it waits for one to be done
	blockKernels = 45  // kernels in a block, about
	// smallKernel is a number of elements: kernels that write fewer are done on an H200 before
	// many others are queued.
	smallKernel = 2.5e6
)

// estimate returns the memory of a step that consists of some passes, in bytes.
//
// The CPU evaluates block by block, and nearly everything of a block is in memory at once, since
// MLX allocates memory for a hundred operations in advance. A GPU evaluates all passes together.
// MLX queues work as fast as it can, allocates its memory then, and frees what was read only when a
// whole command buffer is done, so the outputs of maxCommands command buffers are in memory.
func (m memoryModel) estimate(passes ...pass) int64 {
	if m.device == mlx.CPU {
		return m.estimateCPU(passes)
	}
	var made, read, kernels float64
	for _, s := range passes {
		n := float64(s.tokens)*float64(s.rows) + float64(s.shared)
		blocks, cast := float64(s.blocks.Blocks), float64(s.cast)
		made += blocks*n*s.blocks.Written + cast
		read += blocks*n*s.blocks.Read + float64(s.linear) + cast
		kernels += blocks * blockKernels
	}
	if kernels == 0 {
		return 0
	}
	elements := m.commandElements + read/kernels // a command buffer ends when it exceeds the limit
	share := min(1, maxCommands*elements/read, maxCommands*m.commandKernels/kernels)
	share = max(share, blockKernels/kernels) // at least one block
	all := int64(made*share*min(1, made/kernels/smallKernel)) * m.item
	if m.lookahead > 0 {
		return min(all, m.lookahead+overshoot)
	}
	return all
}

func (m memoryModel) estimateCPU(passes []pass) (peak int64) {
	for _, s := range passes {
		n := float64(s.tokens)*float64(s.rows) + float64(s.shared)
		scores := s.blocks.Scores * float64(s.blocks.Heads) * n * float64(s.tokens+s.shared)
		if mlx.ConvolvesOnHost() {
			scores = 0
		}
		cast := float64(s.cast) / float64(max(1, s.blocks.Blocks)) // of one block
		peak = max(peak, int64(n*s.blocks.Live+max(scores+s.blocks.Cast*cast, s.blocks.CastAlone*cast))*m.item)
	}
	return peak
}
