package models

import (
	"bytes"
	"image"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
)

var timeLayer = regexp.MustCompile(`(norm|norm1|norm1_context|norm_out)\.linear\.weight$|_mod\.1\.weight$`)

// TestTimeTables checks that the layers that see only the timestep run once for all steps and both
// prompts, and with a hook at every step, with results that differ by rounding.
func TestTimeTables(t *testing.T) {
	for _, name := range []string{"flux1-dev-small", "flux1-kontext", "qwen-image-ordinary", "qwen-edit-plus"} {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				p := loadFolder(t, filepath.Join("testdata", name, "model"))
				request := p.defaultRequest()
				request.Prompt, request.NegativePrompt, request.Guidance = "a red circle", "blurry", 2.5
				request.Steps, request.Height, request.Width = 3, 32, 48
				if family.Find(p.Class).TrueCFG {
					request.TrueCFGScale = 2
				}
				if e, ok := p.family.(family.Editor); ok && e.CheckReferences(1) == nil {
					request.References = []image.Image{gradient(32, 32)}
				}
				prompts, tables := len(p.promptNames(&request)), 1
				if p.family.(family.TimeTabled).TableOfPrompt() {
					tables = prompts
				}

				run := func(hook hooks.Func) (latents []float32, uses []int) {
					counts := map[*mlx.Array]int{}
					defer nn.Watch(func(a *mlx.Array) { counts[a]++ })()
					r := request
					r.Hook = hook
					r.OnStep = func(s Step) error {
						latents = slices.Clone(s.Latents.Data)
						return nil
					}
					if _, err := p.Generate(r); err != nil {
						t.Fatal(err)
					}
					for _, parameter := range nn.Parameters(p.loadables[component.Transformers].Model) {
						if timeLayer.MatchString(parameter.Name) {
							uses = append(uses, counts[parameter.Array])
						}
					}
					return latents, uses
				}
				table, uses := run(nil)
				if len(uses) == 0 || slices.Min(uses) != tables || slices.Max(uses) != tables {
					t.Errorf("the layers were used %v times, expected %d", uses, tables)
				}
				each, uses := run(func(hooks.Tap) (*mlx.Array, error) { return nil, nil })
				if n := 3 * prompts; len(uses) == 0 || slices.Min(uses) != n || slices.Max(uses) != n {
					t.Errorf("with a hook the layers were used %v times, expected %d", uses, n)
				}
				if d := farthest(table, each); d > 1e-5 {
					t.Errorf("latents differ by %g", d)
				}
			})
		})
	}
}

// TestTimeLayersFreed checks with low RAM that layers that see only the timestep are not in memory
// during the steps, whose results do not change, also if a callback runs the model.
func TestTimeLayersFreed(t *testing.T) {
	for _, name := range []string{"flux1-dev-small", "qwen-image-small"} {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				folder := os.DirFS(filepath.Join("testdata", name, "model"))
				open := func(low bool) *Pipeline {
					p, err := Load(folder, LoadOptions{LowRAM: low})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(p.Close)
					return p
				}
				all, low := open(false), open(true)
				r := Request{
					Prompt: "a red hat", NegativePrompt: "blurry", Height: 32, Width: 48, Steps: 3, Guidance: 3, MaxSequenceLength: 48,
				}
				if family.Find(all.Class).TrueCFG {
					r.TrueCFGScale = 2
				}
				generate := func(p *Pipeline, r Request) []byte {
					result, err := p.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					return result.Image.Pix
				}
				want := generate(all, r)
				other := r
				other.Steps, other.Prompt = 2, "a blue hat"
				wantOther := generate(all, other)

				transformer := low.loadables[component.Transformers]
				replaced := low.replacedByTable(transformer)
				r.OnStep = func(s Step) error {
					for _, p := range nn.Parameters(transformer.Model) {
						if inMemory := p.Array != nil; inMemory == replaced[p.Param] {
							t.Fatalf("step %d: %s is in memory: %v", s.Step, p.Name, inMemory)
						}
					}
					if s.Step == 1 && !bytes.Equal(generate(low, other), wantOther) {
						t.Error("another image of a run in a callback")
					}
					return nil
				}
				if !bytes.Equal(generate(low, r), want) {
					t.Error("another image")
				}
				long := r
				long.OnStep, long.Steps, long.Scheduler = func(s Step) error {
					if p := nn.Parameters(transformer.Model)[0]; p.Array == nil {
						t.Fatalf("step %d of more than fit in the table: %s is not in memory", s.Step, p.Name)
					}
					return nil
				}, family.TableSteps+2, ""
				generate(low, long)
			})
		})
	}
}

// TestTimeLayersLoRA checks with low RAM that a LoRA changes the layers that are freed before the
// steps, in the weights and at run time.
func TestTimeLayersLoRA(t *testing.T) {
	mlxtest.Do(t, func() {
		file := filepath.Join(t.TempDir(), "lora.safetensors")
		writeLoRA(t, file, "transformer.single_transformer_blocks.0.norm.linear", 24, 72, 0.5)
		fsys := os.DirFS("testdata/flux1-dev-small/model")
		generate := func(o LoadOptions) []float32 {
			p, err := Load(fsys, o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r := Request{Prompt: "a red hat", Height: 32, Width: 48, Steps: 3, Guidance: 3, MaxSequenceLength: 48}
			var latents []float32
			r.OnStep = func(s Step) error {
				latents = slices.Clone(s.Latents.Data)
				return nil
			}
			if _, err := p.Generate(r); err != nil {
				t.Fatal(err)
			}
			return latents
		}
		plain := generate(LoadOptions{})
		loras := []lora.Spec{{Path: file, Scale: 1}}
		for _, atRunTime := range []bool{false, true} {
			want := generate(LoadOptions{LoRAs: loras, RuntimeLoRA: atRunTime})
			if d := farthest(want, plain); d < 1e-3 {
				t.Errorf("the LoRA changes the latents by %g", d)
			}
			if low := generate(LoadOptions{LoRAs: loras, RuntimeLoRA: atRunTime, LowRAM: true}); !slices.Equal(low, want) {
				t.Errorf("at run time %v: latents differ by %g", atRunTime, farthest(low, want))
			}
		}
	})
}
