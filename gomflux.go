package gomflux

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/weights"
)

// ErrUnsupported is wrapped by errors about models that are whole but that this
// version cannot run.
var ErrUnsupported = models.ErrUnsupported

// ErrRequest is what errors about Options are (errors.Is): a size, a number or
// a prompt that the model cannot take.
var ErrRequest = models.ErrRequest

// Progress tells what a run has reached.
type Progress = models.Progress

// Phases of a run, in order.
const (
	PhaseLoad   = models.PhaseLoad
	PhaseEncode = models.PhaseEncode
	PhaseStep   = models.PhaseStep
	PhaseDecode = models.PhaseDecode
)

// Defaults are the settings a model is meant to be run with.
type Defaults = models.Defaults

// OpenOptions say how a model is loaded. The zero value, or nil, is sensible.
type OpenOptions struct {
	// Device is "gpu", "cpu" or, for a GPU where there is one, "".
	Device string
	// Dtype is "float32", "bfloat16" or "float16"; "" is float32 on the CPU and
	// bfloat16 on a GPU.
	Dtype string
	// Defaults, if set, replace those of the model's pipeline class.
	Defaults *Defaults
	// For, if set, are options that the model is to be used with: what it
	// cannot do of them is an error before its weights are read.
	For *Options
	// Progress is called on the caller's goroutine while the model is loaded.
	Progress func(Progress)
}

// A Model is a loaded model.
type Model struct {
	pipeline *models.Pipeline
}

// Open loads the model in a folder.
func Open(ctx context.Context, folder string, o *OpenOptions) (*Model, error) {
	fsys, err := weights.OpenFolder(folder)
	if err != nil {
		return nil, err
	}
	return OpenFS(ctx, fsys, o)
}

// OpenFS loads the model in a file system, such as an embed.FS.
func OpenFS(ctx context.Context, fsys fs.FS, o *OpenOptions) (*Model, error) {
	if o == nil {
		o = &OpenOptions{}
	}
	device, err := parseDevice(o.Device)
	if err != nil {
		return nil, err
	}
	var dtype *mlx.Dtype
	if o.Dtype != "" {
		d, err := mlx.ParseDtype(o.Dtype)
		if err != nil || d != mlx.Float32 && d != mlx.Float16 && d != mlx.BFloat16 {
			return nil, fmt.Errorf("dtype %q: expected float32, bfloat16 or float16", o.Dtype)
		}
		dtype = &d
	}
	load := models.LoadOptions{Device: device, Dtype: dtype, Defaults: o.Defaults, Progress: onCaller(o.Progress)}
	if o.For != nil {
		load.Check = func(p *models.Pipeline) error { return p.Check(request(p, *o.For)) }
	}
	m := &Model{}
	err = mlx.Do(ctx, func() (err error) {
		m.pipeline, err = models.Load(fsys, load)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

func parseDevice(name string) (*mlx.Device, error) {
	var d mlx.Device
	switch name {
	case "":
		return nil, nil
	case "cpu":
		d = mlx.CPU
	case "gpu":
		d = mlx.GPU
	default:
		return nil, fmt.Errorf("device %q: expected gpu or cpu", name)
	}
	return &d, nil
}

// onCaller makes f run on the goroutine that waits for the MLX thread.
func onCaller(f func(Progress)) func(Progress) {
	if f == nil {
		return nil
	}
	return func(p Progress) { mlx.Call(func() { f(p) }) }
}

// Close frees the model. It must not be in use.
func (m *Model) Close() error {
	m.pipeline.Close()
	m.pipeline = nil
	return nil
}

// Class is the model's pipeline class, as model_index.json names it.
func (m *Model) Class() string { return m.pipeline.Class }

// Defaults are the settings that Generate uses where Options has none.
func (m *Model) Defaults() Defaults { return m.pipeline.Defaults }

// Device is where the model runs: cpu, metal or cuda.
func (m *Model) Device() string { return m.pipeline.Device().String() }

// Dtype is what the model computes in.
func (m *Model) Dtype() string { return m.pipeline.Dtype().String() }

// Multiple is what heights and widths must be a multiple of, in pixels.
func (m *Model) Multiple() int { return m.pipeline.Multiple() }

// Options say what picture to make. Zero values stand for the model's
// defaults.
type Options struct {
	Prompt string
	// NegativePrompt is what guidance leads away from.
	NegativePrompt string
	// Height and Width are in pixels, multiples of Model.Multiple.
	Height, Width int
	Steps         int
	// Guidance is the strength of classifier-free guidance; nil is the model's
	// default and 0 turns it off.
	Guidance *float64
	// Seed chooses the initial noise; nil is a random one.
	Seed *uint64
	// MaxSequenceLength is how many tokens the prompt may have, with those of
	// the model's template.
	MaxSequenceLength int
	// Latents, if set, are the initial noise: float32 in the shape that
	// diffusers' pipeline takes, without the batch axis.
	Latents []float32

	// Progress is called on the caller's goroutine.
	Progress func(Progress)
	// Hook sees every module's output, on the MLX thread.
	Hook hooks.Func
}

// A Result is a picture and what made it.
type Result struct {
	Image *image.RGBA

	Prompt, NegativePrompt string
	Height, Width, Steps   int
	Guidance               float64
	Seed                   uint64
	PromptTokens           int

	EncodeTime, StepTime, DecodeTime time.Duration // StepTime is the sum over all steps
	PeakMemory                       int           // bytes, of MLX's arrays
}

// Generate makes one picture. A done context ends it at the next block on the
// CPU and at the next step on a GPU, with an error that wraps the context's.
func (m *Model) Generate(ctx context.Context, o Options) (*Result, error) {
	r := request(m.pipeline, o)
	var out *models.Result
	err := mlx.Do(ctx, func() (err error) {
		out, err = m.pipeline.Generate(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Result{
		Image: out.Image, Prompt: r.Prompt, NegativePrompt: r.NegativePrompt, Height: r.Height, Width: r.Width, Steps: r.Steps,
		Guidance: r.Guidance, Seed: r.Seed, PromptTokens: out.PromptTokens,
		EncodeTime: out.Encode, StepTime: out.Step, DecodeTime: out.Decode, PeakMemory: out.PeakMemory,
	}, nil
}

// Check says what of the options the model cannot do, as Generate would,
// without running anything.
func (m *Model) Check(o Options) error { return m.pipeline.Check(request(m.pipeline, o)) }

// request fills in what the options leave open.
func request(p *models.Pipeline, o Options) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: o.Prompt, NegativePrompt: o.NegativePrompt,
		Height: cmp.Or(o.Height, d.Height), Width: cmp.Or(o.Width, d.Width),
		Steps: cmp.Or(o.Steps, d.Steps), Guidance: d.Guidance,
		MaxSequenceLength: cmp.Or(o.MaxSequenceLength, d.MaxSequenceLength),
		Latents:           o.Latents, Hook: o.Hook, Progress: onCaller(o.Progress),
	}
	if o.Guidance != nil {
		r.Guidance = *o.Guidance
	}
	if o.Seed != nil {
		r.Seed = *o.Seed
	} else {
		r.Seed = uint64(rand.Uint32()) // 32 bits: what people are used to typing again
	}
	return r
}
