package models_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/weights"
)

// goldens are the dumps in testdata that scripts/reference/goldens.sh makes,
// each a whole run; its settings say of which model. Every tensor is compared
// that is not isUntapped.
var goldens = []string{
	"zimage-ordinary", "zimage-small",
	"zimage-image", "zimage-image-resized",
	"zimage-heun", "zimage-linear",
}

// untapped are the names of the references' tensors that no tap here has.
var untapped = regexp.MustCompile(strings.Join([]string{
	`:in\.`,                   // inputs are other modules' outputs
	`\.dropout|\.to_out\.1`,   // does nothing
	`\.rotary_emb`,            // the rotary table is no tensor of ours
	`\.attention_mask$`,       // prompts are not padded
	`^text_encoder(#1)?(:|$)`, // its layers' outputs once more
	`^text_encoder\.norm`,     // not needed
}, "|"))

// isUntapped says whether a tensor needs no tap. Of the text encoder's layers
// the last one is not needed.
func isUntapped(name string, textLayers int) bool {
	rest, last := strings.CutPrefix(name, fmt.Sprintf("text_encoder.layers.%d", textLayers-1))
	return untapped.MatchString(name) || last && (rest == "" || rest[0] == '.' || rest[0] == '#')
}

// runGolden replays a dump with a hook that gets every tap together with its
// counterpart in the dump, cut to the pass it belongs to.
func runGolden(t *testing.T, golden string, visit func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error)) (pixels []uint8, want []uint8) {
	t.Helper()
	mlxtest.Do(t, func() {
		ref, err := parity.OpenRun(os.DirFS(filepath.Join("testdata", golden, "dump")))
		if err != nil {
			t.Fatal(err)
		}
		model := os.DirFS(filepath.Join("testdata", ref.Model))
		p, err := models.Load(model, models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		r := models.Request{
			Prompt: ref.Prompt, Height: ref.Height, Width: ref.Width, Steps: ref.Steps, Guidance: ref.Guidance,
			MaxSequenceLength: ref.MaxSequenceLength, Scheduler: ref.Scheduler, ImageStrength: ref.ImageStrength,
			Latents: initial(ref),
		}
		if ref.NegativePrompt != nil {
			r.NegativePrompt = *ref.NegativePrompt
		}
		if ref.Picture != "" {
			from, err := picture.ReadFile(filepath.Join("testdata", golden, ref.Picture))
			if err != nil {
				t.Fatal(err)
			}
			r.Image = from.Image
		}
		first := -1
		calls, visited := map[string]int{}, map[string]bool{}
		r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Point.Kind == hooks.Inner {
				return nil, nil
			}
			name := tap.Name
			if tap.Step >= 0 && !strings.HasPrefix(name, "vae") && name != "image" {
				name += fmt.Sprintf("@%d", tap.Step)
				if first < 0 {
					first = tap.Step
				}
			}
			pass := fmt.Sprint(name, tap.Negative && strings.Contains(name, "transformer"))
			if calls[pass]++; calls[pass] > 1 {
				name += fmt.Sprintf("#%d", calls[pass]-1)
			}
			if tap.Name == "transformer" && tap.Negative {
				name += ":out.0.1" // the second sample of the batch
			}
			visited[name] = true
			want := ref.Array(name)
			if want == nil {
				return nil, nil
			}
			return visit(name, tap, onePass(want, tap))
		}
		res, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(res.Image.Pix); i += 4 {
			pixels = append(pixels, res.Image.Pix[i:i+3]...)
		}
		want = ref.Array("image").Uint8s()
		if first != ref.FirstStep || res.Steps != ref.Steps-ref.FirstStep {
			t.Errorf("%d steps from step %d, expected %d from %d", res.Steps, first, ref.Steps-ref.FirstStep, ref.FirstStep)
		}
		var text struct {
			Layers int `json:"num_hidden_layers"`
		}
		if err := weights.ReadJSON(model, "text_encoder/config.json", &text); err != nil {
			t.Fatal(err)
		}
		for _, name := range ref.Names() {
			if !visited[name] && !isUntapped(name, text.Layers) {
				t.Errorf("%s is in the dump and not tapped", name)
			}
		}
	})
	return pixels, want
}

// initial is the dump's initial noise, without the batch axis.
func initial(ref *parity.Run) models.Latents {
	x := ref.Array("latents.init")
	return models.Latents{Shape: x.Shape()[1:], Data: x.Floats()}
}

// onePass cuts what diffusers computes for prompt and negative prompt at once
// to the part that the tap is of: its row of the batch, or its part of joined
// tokens, without the pads that make both equally long.
func onePass(want *mlx.Array, tap hooks.Tap) *mlx.Array {
	got := tap.Output.Shape()
	shape := want.Shape()
	if slices.Equal(got, shape) {
		return want
	}
	if tap.Name == "prompt.input_ids" || tap.Name == "negative.input_ids" {
		return want.Slice(1, 0, got[1]) // the reference pads
	}
	axis := 0
	if len(got) != len(shape) || shape[0] < got[0] {
		return want
	}
	start := 0
	if tap.Negative {
		start = shape[0] - got[0]
	}
	want = want.Slice(axis, start, start+got[0])
	if len(got) > 2 && want.Dim(1) > got[1] {
		want = want.Slice(1, 0, got[1])
	}
	return want
}

// inside are the names of tensors within a component.
var inside = regexp.MustCompile(`^(transformer|text_encoder)\.|^vae\.(en|de)coder`)

// TestPipeline runs freely from the reference's prompt, initial latents and
// picture to the new picture.
func TestPipeline(t *testing.T) {
	for _, golden := range goldens {
		t.Run(golden, func(t *testing.T) {
			seen, worst := 0, 0.0
			pixels, want := runGolden(t, golden, func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error) {
				if name == "image" || inside.MatchString(name) { // image is rounded: compared below
					return nil, nil
				}
				seen++
				d := parity.Compare(tap.Output.Floats(), want.Floats())
				t.Logf("%s: %v", name, d)
				if !d.Within(parity.Float32) || name == "image.in" && d.Max != 0 {
					t.Errorf("%s: %v", name, d)
				}
				worst = max(worst, d.Relative())
				return nil, nil
			})
			t.Logf("%d tensors, worst %.1e", seen, worst)
			if seen < 8 {
				t.Errorf("%d tensors compared", seen)
			}
			samePicture(t, pixels, want)
		})
	}
}

// samePicture lets one in a thousand values differ by 1, by rounding.
func samePicture(t *testing.T, pixels, want []uint8) {
	t.Helper()
	if len(pixels) != len(want) {
		t.Fatalf("picture of %d values, expected %d", len(pixels), len(want))
	}
	off := 0
	for i, w := range want {
		switch diff := int(pixels[i]) - int(w); {
		case diff < -1 || diff > 1:
			t.Fatalf("value %d of the picture is %d, expected %d", i, pixels[i], w)
		case diff != 0:
			off++
		}
	}
	t.Logf("%d of %d values of the picture differ by 1", off, len(want))
	if off*1000 > len(want) {
		t.Errorf("%d of %d values of the picture differ by 1", off, len(want))
	}
}

// TestModules gives every module the reference's inputs, by putting the
// reference's tensor in the place of every output, and so measures each
// module's own error.
func TestModules(t *testing.T) {
	for _, golden := range goldens {
		t.Run(golden, func(t *testing.T) {
			seen, worst, worstName := 0, 0.0, ""
			runGolden(t, golden, func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error) {
				seen++
				if !slices.Equal(tap.Output.Shape(), want.Shape()) {
					t.Errorf("%s: shape %v, expected %v", name, tap.Output.Shape(), want.Shape())
					return nil, nil
				}
				d := parity.Compare(tap.Output.Floats(), want.Floats())
				if !d.Within(parity.Float32) {
					t.Errorf("%s: %v", name, d)
				}
				if d.Relative() > worst {
					worst, worstName = d.Relative(), name
				}
				return want.AsType(tap.Output.Dtype()), nil
			})
			t.Logf("%d tensors, worst %.1e (%s)", seen, worst, worstName)
		})
	}
}
