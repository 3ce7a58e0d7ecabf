package parity

import (
	"io/fs"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
)

// Options say how to replay a run.
type Options struct {
	Model      string // a folder or a name that catalog.Find knows; "" is the run's own
	Readings   []string
	Device     *mlx.Device // nil: a GPU if there is one
	Dtype      *mlx.Dtype  // nil: the device's own
	Tolerances *Table      // nil: the built-in one
	// Quantize, LoRAs and RuntimeLoRA are those of models.LoadOptions.
	Quantize    *mlx.Quantization
	LoRAs       []lora.Spec
	RuntimeLoRA bool
	// Progress is told of every pass through the model before it begins.
	Progress func(pass, passes int)

	fault func(*replay, hooks.Tap) *mlx.Array // of tests: takes the place of an output that was looked at
	bug   func(*replay, hooks.Tap) *mlx.Array // the same before it is looked at
	quick bool                                // only the last pass
	more  []string                            // folders with more of the run's tensors
}

// A replay is one in progress.
type replay struct {
	Options
	passNames
	run      string
	ref      *Run
	fsys     fs.FS
	model    string
	pipeline *models.Pipeline
	request  models.Request
	absent   absent

	pass    pass
	entries map[string]*Tensor
	visited map[string]bool
	whole   map[string]bool // modules, and stages, of this pass with others inside that are not in the dump
	order   int
	first   int // step that ran
	ours    []uint8
	seeking int // hints that may still be looked for
	sights  []sight
}

// A pass is one run of the model.
type pass struct {
	reading string
	depth   int  // of the modules whose outputs are the reference's, and of those above
	last    bool // of all
}
