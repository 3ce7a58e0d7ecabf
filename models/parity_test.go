package models_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
)

// The goldens in testdata are made by scripts/reference/goldens.sh.

// untapped are the modules of the references without a tap here: dropout does
// nothing, the rotary table is no tensor of ours, and the text encoder's last
// layer and norm are not needed.
var untapped = map[string]*regexp.Regexp{
	"zimage-ordinary": untappedWithout("2"),
	"zimage-small":    untappedWithout("3"),
}

func untappedWithout(lastLayer string) *regexp.Regexp {
	return regexp.MustCompile(`\.dropout|\.to_out\.1|rotary_emb|attention_mask|^text_encoder(#1)?$|^text_encoder\.norm(#1)?$` +
		`|^text_encoder\.layers\.` + lastLayer + `(\.|#|$)`)
}

// runGolden replays a dump with a hook that gets every tap together with its
// counterpart in the dump, cut to the pass it belongs to.
func runGolden(t *testing.T, golden string, visit func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error)) (picture []uint8, want []uint8) {
	t.Helper()
	err := mlx.Do(context.Background(), func() error {
		p, err := models.Load(os.DirFS("testdata/"+golden+"/model"), models.LoadOptions{})
		if err != nil {
			return err
		}
		defer p.Close()
		ref, err := parity.OpenRun(os.DirFS("testdata/" + golden + "/dump"))
		if err != nil {
			return err
		}
		r := models.Request{
			Prompt: ref.Prompt, Height: ref.Height, Width: ref.Width, Steps: ref.Steps, Guidance: ref.Guidance,
			MaxSequenceLength: ref.MaxSequenceLength, Latents: initial(ref),
		}
		if ref.NegativePrompt != nil {
			r.NegativePrompt = *ref.NegativePrompt
		}
		calls, visited := map[string]int{}, map[string]bool{}
		r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
			name := tap.Name
			if tap.Step >= 0 && !strings.HasPrefix(name, "vae") && name != "image" {
				name += fmt.Sprintf("@%d", tap.Step)
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
			return err
		}
		for i := 0; i < len(res.Image.Pix); i += 4 {
			picture = append(picture, res.Image.Pix[i:i+3]...)
		}
		want = ref.Array("image").Uint8s()
		for _, name := range ref.Names() {
			if !visited[name] && !strings.Contains(name, ":") && !untapped[golden].MatchString(name) {
				t.Errorf("%s is in the dump and not tapped", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return picture, want
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

// TestPipeline runs freely from the reference's prompt and initial latents to
// the picture.
func TestPipeline(t *testing.T) {
	for name := range untapped {
		t.Run(name, func(t *testing.T) {
			seen := 0
			picture, want := runGolden(t, name, func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error) {
				if name == "image" { // rounded: compared below
					return nil, nil
				}
				if strings.Contains(name, ".") && !strings.HasPrefix(name, "vae.decode.") && !strings.HasSuffix(name, ".embeds") && !strings.HasSuffix(name, ".input_ids") {
					return nil, nil // inside a component
				}
				seen++
				d := parity.Compare(tap.Output.Floats(), want.Floats())
				t.Logf("%s: %v", name, d)
				if !d.Within(parity.Float32) {
					t.Errorf("%s: %v", name, d)
				}
				return nil, nil
			})
			if seen < 8 {
				t.Errorf("%d tensors compared", seen)
			}
			off := 0
			for i, w := range want {
				switch diff := int(picture[i]) - int(w); {
				case diff < -1 || diff > 1:
					t.Fatalf("value %d of the picture is %d, expected %d", i, picture[i], w)
				case diff != 0:
					off++
				}
			}
			t.Logf("%d of %d values of the picture differ by 1", off, len(want))
			if off*1000 > len(want) {
				t.Errorf("%d of %d values of the picture differ by 1", off, len(want))
			}
		})
	}
}

// TestModules gives every module the reference's inputs, by putting the
// reference's tensor in the place of every output, and so measures each
// module's own error.
func TestModules(t *testing.T) {
	for name := range untapped {
		t.Run(name, func(t *testing.T) {
			seen := 0
			var worst float64
			runGolden(t, name, func(name string, tap hooks.Tap, want *mlx.Array) (*mlx.Array, error) {
				seen++
				if !slices.Equal(tap.Output.Shape(), want.Shape()) {
					t.Errorf("%s: shape %v, expected %v", name, tap.Output.Shape(), want.Shape())
					return nil, nil
				}
				d := parity.Compare(tap.Output.Floats(), want.Floats())
				if !d.Within(parity.Float32) {
					t.Errorf("%s: %v", name, d)
				}
				worst = max(worst, d.Relative())
				return want.AsType(tap.Output.Dtype()), nil
			})
			t.Logf("%d tensors, worst %.1e", seen, worst)
		})
	}
}
