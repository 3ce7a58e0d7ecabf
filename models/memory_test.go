package models

import (
	"bytes"
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/nn"
)

// TestLowRAM: with one part in memory at a time the pictures are the same, and
// so they are when a part is needed again.
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
					for name, part := range p.parts {
						n := 0
						for _, parameter := range nn.Parameters(part.model) {
							if parameter.Array != nil {
								n++
							}
						}
						if n > 0 {
							names = append(names, name)
						}
						if (n > 0) != part.loaded {
							t.Errorf("%s: %d parameters are in memory, loaded is %v", name, n, part.loaded)
						}
					}
					return names
				}
				all, low := load(false), load(true)
				if names := inMemory(all); len(names) != len(all.parts) {
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
					if names := inMemory(low); len(names) != 2 || !low.parts["transformer"].loaded {
						t.Errorf("%s: %v are in memory after a run", prompt, names)
					}
					if len(loads) == 0 && prompt == "a red hat" {
						t.Error("no progress of loading")
					}
				}
			})
		})
	}
}
