package models

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestLowRAM checks that images are the same with one component in memory at a time, also when a
// component is loaded again.
func TestLowRAM(t *testing.T) {
	for _, folder := range []string{"flux1-dev-small", "flux2-klein-base"} {
		t.Run(folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				load := func(low bool) *Pipeline {
					p, err := Load(os.DirFS("testdata/"+folder+"/model"), LoadOptions{LowRAM: low})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(p.Close)
					return p
				}
				inMemory := func(p *Pipeline) (names []string) {
					for name, loadable := range p.loadables {
						n := loadable.parameters()
						if n > 0 {
							names = append(names, name)
						}
						if (n > 0) != loadable.loaded {
							t.Errorf("%s: %d parameters are in memory, loaded is %v", name, n, loadable.loaded)
						}
					}
					return names
				}
				all, low := load(false), load(true)
				if names := inMemory(all); len(names) != len(all.loadables) {
					t.Errorf("%v are in memory", names)
				}
				if names := inMemory(low); len(names) != 1 {
					t.Errorf("%v are in memory before a run", names)
				}
				for _, prompt := range []string{"a red hat", "a blue hat", "a blue hat"} {
					r := Request{Prompt: prompt, Height: 32, Width: 48, Steps: 2, Guidance: 3, MaxSequenceLength: 48, Seed: 1}
					want, err := all.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					loads := map[string]bool{}
					r.Progress = func(pr Progress) {
						if pr.Phase == PhaseLoad {
							loads[pr.Component] = true
						}
					}
					got, err := low.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
						t.Errorf("%s: another picture", prompt)
					}
					if names := inMemory(low); len(names) != 1 {
						t.Errorf("%s: %v are in memory after a run", prompt, names)
					}
					if !loads["transformer"] {
						t.Errorf("%s: no progress of loading the transformer", prompt)
					}
				}
			})
		})
	}
}

// parameters returns the number of parameters in memory.
func (p *loadable) parameters() (n int) {
	for _, parameter := range nn.Parameters(p.Model) {
		if parameter.Array != nil {
			n++
		}
	}
	return n
}

// TestLowRAMInterrupted checks that nothing stays in memory of a component whose loading is
// interrupted, and that the next run loads it again.
func TestLowRAMInterrupted(t *testing.T) {
	var p *Pipeline
	r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 2, MaxSequenceLength: 48, Seed: 1}
	mlxtest.Do(t, func() {
		var err error
		if p, err = Load(os.DirFS("testdata/flux2-klein/model"), LoadOptions{LowRAM: true}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
	})
	for _, component := range []string{"text_encoder.model", "transformer"} {
		ctx, cancel := context.WithCancel(t.Context())
		r.Progress = func(pr Progress) {
			if pr.Component == component && pr.Bytes < pr.TotalBytes && pr.Bytes > pr.TotalBytes/2 {
				cancel()
			}
		}
		err := mlx.Do(ctx, func() error {
			_, err := p.Generate(r)
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", component, err)
		}
		for _, dir := range []string{"text_encoder", "transformer"} {
			if n := p.loadables[dir].parameters(); n > 0 {
				t.Errorf("%s interrupted: %d parameters of %s are in memory", component, n, dir)
			}
		}
	}
	r.Progress = nil
	mlxtest.Do(t, func() {
		got, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := Load(os.DirFS("testdata/flux2-klein/model"), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(whole.Close)
		want, err := whole.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
			t.Error("another picture")
		}
	})
}

// TestLowRAMNested runs a model in a callback of another run: the inner run may need another
// component, or fail after loading it.
func TestLowRAMNested(t *testing.T) {
	mlxtest.Do(t, func() {
		p, err := Load(os.DirFS("testdata/flux2-klein/model"), LoadOptions{LowRAM: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 3, MaxSequenceLength: 48, Seed: 1}
		want, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		stop := errors.New("stop")
		nested := r
		r.OnStep = func(s Step) error {
			nested.Prompt = "a hat of the colour " + string(rune('a'+s.Step))
			nested.OnStep = func(Step) error { return stop }
			if s.Step == 1 { // fails with the text encoder in memory
				nested.Overrides = hostValues{"latents.init": func() *mlx.Array { return mlx.Zeros(mlx.Float32, 1) },
					"prompt.embeds": func() *mlx.Array {
						if err := p.ensureLoaded("text_encoder", nil, nil); err != nil {
							t.Error(err)
						}
						return mlx.Zeros(mlx.Float32, 1)
					}}
			} else {
				nested.Overrides = nil
			}
			if _, err := p.Generate(nested); err == nil || s.Step > 1 && !errors.Is(err, stop) {
				t.Errorf("error %v", err)
			}
			if s.Step == 1 && p.loadables["transformer"].loaded {
				t.Error("the transformer is still in memory")
			}
			return nil
		}
		got, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
			t.Error("another picture")
		}

		r.OnStep, r.Prompt = nil, "a blue hat"
		var inside error
		r.Progress = func(pr Progress) {
			if pr.Phase == PhaseLoad && inside == nil {
				_, inside = p.Generate(Request{Prompt: "a green hat", Height: 32, Width: 48, Steps: 1, MaxSequenceLength: 48})
			}
		}
		if _, err := p.Generate(r); err != nil {
			t.Fatal(err)
		}
		if inside == nil || !strings.Contains(inside.Error(), "while another component is being loaded") {
			t.Errorf("a run while a component is being loaded: error %v", inside)
		}
	})
}

// TestMemoryLimit checks that a run on CUDA limits MLX's memory, updates the limit after loading or
// freeing a component, and restores the previous limit, as does a run in its callback.
// The limit is one for all devices, so that this needs no GPU.
func TestMemoryLimit(t *testing.T) {
	if mlx.GPU.Backend() != mlx.BackendCUDA {
		t.Skip("there is no CUDA on this system")
	}
	mlxtest.Do(t, func() {
		limit := func() int {
			n := mlx.SetMemoryLimit(0)
			mlx.SetMemoryLimit(n)
			return n
		}
		const lookahead = 1000
		owned := limit()
		p := limitMemory(mlx.GPU, lookahead)
		if got, want := limit(), mlx.ActiveMemory()+lookahead; got != want {
			t.Errorf("the limit is %d, expected %d", got, want)
		}
		loadable := mlx.Zeros(mlx.Float32, 1<<20)
		mlx.Eval(loadable)
		p.update()
		if got, want := limit(), mlx.ActiveMemory()+lookahead; got != want || got < 4<<20 {
			t.Errorf("with another component the limit is %d, expected %d", got, want)
		}
		outer := limit()
		inner := limitMemory(mlx.GPU, 1<<50)
		if got := limit(); got != outer {
			t.Errorf("a run in a run has a limit of %d, expected that of the outer one, %d", got, outer)
		}
		inner.restore()
		if got := limit(); got != outer {
			t.Errorf("after it the limit is %d, expected %d", got, outer)
		}
		p.restore()
		if got := limit(); got != owned {
			t.Errorf("after the run the limit is %d, expected %d", got, owned)
		}
		defer limitMemory(mlx.CPU, lookahead).restore()
		if got := limit(); got != owned {
			t.Errorf("on the CPU the limit is %d, expected %d", got, owned)
		}
	})
}
