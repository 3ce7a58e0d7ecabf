package models

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/draw"
	"os"
	"runtime/debug"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inpaint"
)

// TestInputsEncodedOnce checks that the autoencoder encodes input images once for all seeds, and again
// for another image, another size and another mask.
func TestInputsEncodedOnce(t *testing.T) {
	masked := func(left int, img image.Image) *inpaint.Input {
		mask := image.NewGray(image.Rect(0, 0, 90, 70))
		draw.Draw(mask, image.Rect(left, 20, 60, 55), image.White, image.Point{}, draw.Src)
		in, err := inpaint.New(img, mask, inpaint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	img := coloured(90, 70)
	for _, test := range []struct {
		name, folder string
		use          func(r *Request, img image.Image, left int)
		encoded      int // arrays for an image
		ofMask       int // of them, those that depend on the mask
	}{
		{"start", "zimage-small", func(r *Request, img image.Image, _ int) { r.Image, r.ImageStrength = img, 0.5 }, 1, 0},
		{"mask", "zimage-small", func(r *Request, img image.Image, left int) { r.Inpaint = masked(left, img) }, 1, 0},
		{"fill", "flux1-fill", func(r *Request, img image.Image, left int) { r.Inpaint = masked(left, img) }, 2, 1},
		{"edit", "flux2-klein", func(r *Request, img image.Image, _ int) { r.References = []image.Image{img} }, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				load := func() *Pipeline {
					p, err := Load(os.DirFS("testdata/"+test.folder+"/model"), LoadOptions{Dtype: new(mlx.Float32)})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(p.Close)
					return p
				}
				p := load()
				r := Request{Prompt: "a red hat", Height: 64, Width: 96, Steps: 2, MaxSequenceLength: 60, Guidance: p.Defaults.Guidance}
				expect := func(change string, n int) {
					t.Helper()
					result, err := p.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					fresh, err := load().Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(result.Image.Pix, fresh.Image.Pix) || len(p.inputCache) != n {
						t.Errorf("%s: equal to an image of a new pipeline: %t; %d encoded inputs, expected %d", change,
							bytes.Equal(result.Image.Pix, fresh.Image.Pix), len(p.inputCache), n)
					}
				}
				n := test.encoded
				test.use(&r, img, 25)
				expect("first", n)
				r.Seed = 9
				expect("seed", n)
				test.use(&r, img, 40)
				n += test.ofMask
				expect("mask", n)
				test.use(&r, flipped(img), 40)
				n += test.encoded
				expect("image", n)
				r.Width = 64
				if r.References == nil { // those have their own size
					n += test.encoded
				}
				expect("size", n)
			})
		})
	}
}

// TestDroppedDuringRun checks that a run is not disturbed if its prompt embeddings are dropped from the
// cache, as by runs in its callbacks. Its second time table needs them.
func TestDroppedDuringRun(t *testing.T) {
	mlxtest.Do(t, func() {
		p, err := Load(os.DirFS("testdata/flux1-dev-small/model"), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		r := Request{Prompt: "a red hat", Height: 16, Width: 16, Steps: family.TableSteps + 2, MaxSequenceLength: 60}
		want, err := p.Generate(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, cached := range []bool{true, false} {
			r.OnStep = func(Step) error {
				p.promptCache.shrink(0)
				return nil
			}
			got, err := p.Generate(r)
			if err != nil {
				t.Fatalf("cached before the run %t: %v", cached, err)
			}
			mlxtest.Same(t, "image", got.Image.Pix, want.Image.Pix)
		}
	})
}

// TestCloseCompiled checks that compiled functions leave nothing when a run ends, is canceled and when
// the pipeline is closed.
func TestCloseCompiled(t *testing.T) {
	active := func() (n int) {
		mlxtest.Do(t, func() { n = mlx.ActiveMemory() })
		return n
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := active()
	for _, canceled := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		var p *Pipeline
		err := mlx.Do(ctx, func() (err error) {
			if p, err = Load(os.DirFS("testdata/flux2-klein-kv/model"), LoadOptions{}); err != nil {
				return err
			}
			p.compileMode = mlx.Unfused
			r := Request{Prompt: "a red hat", Height: 64, Width: 64, Steps: 3, MaxSequenceLength: 60}
			r.References = []image.Image{coloured(90, 70)}
			r.OnStep = func(s Step) error {
				if canceled && s.Step == 2 {
					cancel()
				}
				return nil
			}
			_, err = p.Generate(r)
			return err
		})
		cancel()
		if errors.Is(err, context.Canceled) != canceled || err != nil && !canceled {
			t.Errorf("error %v", err)
		}
		p.Close()
		if after := active(); after > before {
			t.Errorf("canceled %t: %d bytes after closing, %d before", canceled, after, before)
		}
	}
}
