package parity

import (
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity/report"
)

// A trajectory is a run from the start: its latents after every step, and its image.
type trajectory struct {
	names  []string // of the latents' taps
	steps  [][]float32
	shape  []int // of the latents
	pixels []uint8
}

func (t *trajectory) step(s models.Step) error {
	t.steps, t.shape = append(t.steps, s.Latents.Data), s.Latents.Shape
	return nil
}

// keepTrajectory prepares the request of the run that the one without hooks is compared with.
func (r *replay) keepTrajectory(request *models.Request) {
	r.unhooked, r.hooked = &report.Unhooked{OK: true}, &trajectory{}
	r.forks = map[string]bool{}
	look := request.Hook
	request.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
		out, err := look(tap)
		if tap.Name == "latents" {
			r.lastLatents = tap.FullName()
		}
		return out, err
	}
	request.OnStep = func(s models.Step) error {
		r.hooked.names = append(r.hooked.names, r.lastLatents)
		return r.hooked.step(s)
	}
	request.Forked = r.compareFork
}

// compareFork compares the two forms of an operation.
func (r *replay) compareFork(f hooks.Fork) {
	key := f.Name + " " + f.Operation
	name := hooks.Name{Module: f.Name, Step: f.Step, Call: f.Call}.String()
	tolerance := r.toleranceOf(name, report.Isolated)
	tolerance.Channel = 0
	if _, known := r.forks[key]; !known {
		r.forks[key] = true
		r.unhooked.Operations++
	}
	for i, fused := range f.Fused {
		d := report.Compare(fused.Floats(), f.Modules[i].Floats())
		if d.Within(tolerance) || d.Ref.NaN+d.Ref.Inf > 0 || !r.forks[key] {
			continue
		}
		r.forks[key], r.unhooked.OK = false, false
		r.unhooked.Fused = append(r.unhooked.Fused, &report.FusedDifference{
			Module: name, Operation: f.Operation, Max: d.Max, MaxRef: d.MaxRef, L2: d.L2,
		})
	}
}

// withoutHooks runs the model as users do, and compares the run with the one in which hooks looked.
func (r *replay) withoutHooks() error {
	ours, request := &trajectory{}, r.request
	request.OnStep = ours.step
	if x := r.ref.Array("latents.image"); x != nil && r.ref.Posterior != "" && request.Overrides == nil { // see meet
		request.Overrides = imageLatents{x, r.pipeline.Dtype()}
	}
	res, err := r.generate(request)
	if _, ok := errors.AsType[*models.NotFiniteError](err); err != nil && !ok {
		return fmt.Errorf("run %s without hooks: %w", r.run, err)
	}
	if err == nil {
		ours.pixels = pixels.RGB(res.Image)
	}
	u := r.unhooked
	u.Rest = "how it is prepared, such as what is computed once for all steps"
	if r.pipeline.HasTimeTable() {
		u.Rest = "the table of what depends on the timestep alone (family.TimeTable)"
	}
	if res != nil && res.Compiled {
		u.Rest += ", and the compiled forward pass"
	}
	for i, name := range r.hooked.names {
		var x []float32
		if i < len(ours.steps) {
			x = ours.steps[i]
		}
		if !u.Compare(name, x, r.hooked.steps[i], r.hooked.shape, r.toleranceOf(name, report.Free)) {
			return nil
		}
		u.Steps++
	}
	floats := func(image []uint8) (v []float32) {
		for _, p := range image {
			v = append(v, float32(p))
		}
		return v
	}
	u.Compare(report.ImageValue, floats(ours.pixels), floats(r.hooked.pixels), nil, r.toleranceOf(report.ImageValue, report.Free))
	return nil
}

// imageLatents override the latents of the image to start from.
type imageLatents struct {
	latents *mlx.Array
	dtype   mlx.Dtype
}

func (o imageLatents) Has(name string, _ int) bool { return name == "latents.image" }

func (o imageLatents) Array(string, int) (*mlx.Array, error) {
	s := o.latents.Shape()
	return o.latents.AsType(o.dtype).Reshape(append([]int{1}, s[len(s)-3:]...)...), nil
}
