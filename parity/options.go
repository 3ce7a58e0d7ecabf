package parity

import (
	"io/fs"

	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/parity/report"
)

// Options configure a replay.
type Options struct {
	Model       string            // a folder or a name for catalog.Find; "" is the run's own
	Readings    []string          // Free, Isolated; nil is both
	Device      *mlx.Device       // nil: a GPU if there is one
	Dtype       *mlx.Dtype        // nil: the device's default
	Tolerances  *report.Table     // nil: the built-in table
	Quantize    *mlx.Quantization // as in models.LoadOptions
	LoRAs       []lora.Spec       // as in models.LoadOptions
	RuntimeLoRA bool              // as in models.LoadOptions
	Group       *mlx.Group        // as in models.LoadOptions; every member replays the run, and sees what it computes
	Split       string            // as in models.Request
	// Progress is called before every pass through the model.
	Progress func(pass, passes int)

	// Loaded is called with the loaded pipeline, whose parameters it may change.
	Loaded func(*models.Pipeline)
	// Debugger is called with every tap and, for a module's first output, with what the comparison
	// of the call found. It may stop the run. Only the pass in which modules get the reference's
	// inputs is made then; see [debugger.Session.Judged].
	Debugger func(hooks.Tap, *debugger.Judgement) (*mlx.Array, debugger.Decision, error)

	// Measure gets every pair of tensors of one shape. They are not judged then, and only the last pass
	// is made.
	Measure func(Pair)

	bug    func(*replay, hooks.Tap) *mlx.Array // for tests: replaces an output before it is compared
	fault  func(*replay, hooks.Tap) *mlx.Array // for tests: replaces an output after it is compared
	config func(fs.FS) (fs.FS, error)          // changes a config of the model, see Blind
	quick  bool                                // only the last pass
	more   []string                            // folders with more of the run's tensors
	seen   *[]seenTensor                       // gets those that the last replay has seen, in their order; may be nil
}

// A Pair has a tensor of this program, in Tap.Output, and the reference's.
type Pair struct {
	Tensor    *report.Tensor // without readings
	Tap       hooks.Tap
	Reference *mlx.Array
	// Cut cuts a tensor of another recording of the run to the pass of the tap, as Reference is.
	Cut func(*mlx.Array) *mlx.Array
}
