package parity

import (
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
)

// Options configure a replay.
type Options struct {
	Model       string            // a folder or a name for catalog.Find; "" is the run's own
	Readings    []string          // Free, Isolated; nil is both
	Device      *mlx.Device       // nil: a GPU if there is one
	Dtype       *mlx.Dtype        // nil: the device's default
	Tolerances  *Table            // nil: the built-in table
	Quantize    *mlx.Quantization // as in models.LoadOptions
	LoRAs       []lora.Spec       // as in models.LoadOptions
	RuntimeLoRA bool              // as in models.LoadOptions
	// Progress is called before every pass through the model.
	Progress func(pass, passes int)

	// Loaded is called with the modules of the loaded model.
	Loaded func([]hooks.Module)
	// Debugger is called with every tap and, for a module's first output, with what the comparison
	// of the call found. It may stop the run. Only the pass in which modules get the reference's
	// inputs is made then; see [debugger.Session.Judged].
	Debugger func(hooks.Tap, *debugger.Judgement) (*mlx.Array, debugger.Decision, error)

	// prepare, if set, is called with the loaded pipeline.
	prepare func(*models.Pipeline)
	// measure, if set, gets every pair of tensors of one shape, which are not judged then.
	measure func(r *replay, t *Tensor, tap hooks.Tap, want *mlx.Array)
	bug     func(*replay, hooks.Tap) *mlx.Array // for tests: replaces an output before it is compared
	fault   func(*replay, hooks.Tap) *mlx.Array // for tests: replaces an output after it is compared
	quick   bool                                // only the last pass
	more    []string                            // folders with more of the run's tensors
}
