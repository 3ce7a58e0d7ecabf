package runs_test

import (
	"bytes"
	"context"
	"image"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity/runs"
)

// TestPacked puts tokens in the place of each of the latents, of a pipeline whose
// transformer sees those: the hook leaves what the pipeline made of them, and the
// picture is that of the latents themselves.
func TestPacked(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 64, 48))
	for i := range img.Pix {
		img.Pix[i] = byte(i)
	}
	request := models.Request{Prompt: "a red circle", Height: 48, Width: 64, Steps: 2, Guidance: 2, Seed: 7, MaxSequenceLength: 64,
		Image: img, ImageStrength: 0.5}
	tree, _ := open(t)
	run := func(o runs.Options) (*runs.Session, []byte) {
		t.Helper()
		s, err := runs.NewSession(tree, o)
		if err != nil {
			t.Fatal(err)
		}
		r := request
		r.Hook, r.Overrides = s.Hook, s
		var made *models.Result
		err = mlx.Do(context.Background(), func() error {
			p, err := models.Load(os.DirFS("../../models/testdata/flux1-dev-small/model"), models.LoadOptions{Dtype: new(mlx.Float32)})
			if err != nil {
				return err
			}
			defer p.Close()
			made, err = p.Generate(r)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Unmatched(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return s, made.Image.Pix
	}
	names := []string{"latents.init", "latents.start", "latents.image", "noise_pred@1", "latents@1"}
	_, want := run(runs.Options{Save: names})
	saved := map[string]*checkpoint.Array{}
	for _, name := range names {
		x, err := tree.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		saved[name] = x
	}
	for _, name := range names {
		file := filepath.Join(t.TempDir(), "tokens.npy")
		if err := checkpoint.WriteFile(file, []*checkpoint.Array{packed(t, saved[name])}, nil); err != nil {
			t.Fatal(err)
		}
		s, got := run(runs.Options{Load: []runs.Replacement{replacement(t, name+"="+file)}, Save: []string{name}})
		if !bytes.Equal(got, want) {
			t.Errorf("%s: another picture", name)
		}
		again, err := tree.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.Shape, saved[name].Shape) || !bytes.Equal(again.Data, saved[name].Data) {
			t.Errorf("%s: saved are other latents, of shape %v", name, again.Shape)
		}
		text, err := os.ReadFile(filepath.Join(s.Run().Dir, "settings.json"))
		if err != nil || !strings.Contains(strings.Join(strings.Fields(string(text)), ""), `"packed":["`+name+`"]`) {
			t.Errorf("%s: that it was packed is not recorded: %s, %v", name, text, err)
		}
	}
}

// packed makes tokens [1, h/2*w/2, C*4] of latents [1, C, h, w].
func packed(t *testing.T, x *checkpoint.Array) *checkpoint.Array {
	t.Helper()
	c, h, w := x.Shape[1], x.Shape[2], x.Shape[3]
	from := x.Float32s()
	var to []float32
	for i := range len(from) {
		channel, dy, dx := i/4%c, i/2%2, i%2
		token := i / (4 * c)
		y, x := 2*(token/(w/2))+dy, 2*(token%(w/2))+dx
		to = append(to, from[(channel*h+y)*w+x])
	}
	tokens, err := checkpoint.FromFloat32("tokens", []int{1, h / 2 * (w / 2), c * 4}, to)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}
