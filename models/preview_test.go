package models

import (
	"errors"
	"image"
	"io/fs"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/vae"
)

// loadPreviewing loads the small model with a preview decoder of vae/testdata, "" for projections.
func loadPreviewing(t *testing.T, decoder string, lowRAM bool) (*Pipeline, error) {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	o := LoadOptions{LowRAM: lowRAM}
	o.PreviewDecoder = func(own component.Component) (fs.FS, error) {
		if own.Class.Role != component.Autoencoder {
			t.Errorf("called for a %s", own.Class.Name)
		}
		if decoder == "" {
			return nil, nil
		}
		return checkpoint.OpenFolder("../vae/testdata/" + decoder)
	}
	p, err := Load(fsys, o)
	if err == nil {
		t.Cleanup(p.Close)
	}
	return p, err
}

// TestPreviewDecoder checks that decoding previews in callbacks does not change images bit for bit, one
// at a time, in a batch, and with one component in memory at a time.
func TestPreviewDecoder(t *testing.T) {
	seeds := []uint64{7, 8}
	mlxtest.Do(t, func() {
		generate := func(decoder string, lowRAM bool, onStep func(*Pipeline) func(Step) error) []*Result {
			p, err := loadPreviewing(t, decoder, lowRAM)
			if err != nil {
				t.Fatal(err)
			}
			request := p.defaultRequest()
			request.Prompt, request.Height, request.Width, request.Steps = "a red circle", 24, 40, 3
			if onStep != nil {
				request.OnStep = onStep(p)
			}
			r, err := p.Prepare(request, len(seeds))
			if err != nil {
				t.Fatal(err)
			}
			results, err := r.Generate(seeds)
			if err != nil {
				t.Fatal(err)
			}
			return results
		}
		want := generate("", false, nil)
		for _, lowRAM := range []bool{false, true} {
			var previews []*image.RGBA
			got := generate("tiny-preview", lowRAM, func(p *Pipeline) func(Step) error {
				return func(s Step) error {
					img, err := p.Preview(s.Denoised)
					previews = append(previews, img)
					return err
				}
			})
			if len(previews) != 3*len(seeds) || previews[0].Rect != image.Rect(0, 0, 40, 24) {
				t.Fatalf("%d previews, the first of %v", len(previews), previews[0].Rect)
			}
			for i := range seeds {
				mlxtest.Same(t, "image", got[i].Image.Pix, want[i].Image.Pix)
			}
		}
		linear := generate("", false, func(p *Pipeline) func(Step) error {
			return func(s Step) error {
				img, err := p.Preview(s.Denoised)
				if err == nil && img.Rect != image.Rect(0, 0, 10, 6) {
					t.Errorf("linear preview of %v", img.Rect)
				}
				return err
			}
		})
		mlxtest.Same(t, "image", linear[0].Image.Pix, want[0].Image.Pix)
	})
}

// TestPreviewMemory checks that the estimate has the memory of the preview decoder, and that a decoder
// for other latents is an error of the request.
func TestPreviewMemory(t *testing.T) {
	mlxtest.Do(t, func() {
		estimate := func(decoder string, wide bool) Estimate {
			p, err := loadPreviewing(t, decoder, false)
			if err != nil {
				t.Fatal(err)
			}
			if wide {
				c := vae.DefaultTinyConfig()
				c.DecoderBlockOutChannels, c.NumDecoderBlocks = []int{256, 256, 256}, []int{1, 1, 1}
				p.previewer.vae = vae.NewTiny(c)
			}
			request := p.defaultRequest()
			request.Prompt, request.Height, request.Width = "x", 256, 256
			r, err := p.Prepare(request, 1)
			if err != nil {
				t.Fatal(err)
			}
			return r.Estimate()
		}
		plain, with := estimate("", false), estimate("tiny-preview", false)
		const weights = 5 << 10 // in bfloat16: a decoder and an encoder of 4 channels
		if n := with.Weights[previewWeights]; n < weights || n > 2*weights || with.AllWeights() != plain.AllWeights()+n {
			t.Errorf("%d bytes of weights, of %d", n, with.AllWeights())
		}
		if plain.Weights[previewWeights] != 0 {
			t.Error("weights without a preview decoder")
		}
		wide := estimate("tiny-preview", true)
		least := wide.AllWeights() + 2*256*256*256*2 // two arrays of 256 channels
		if wide.Step < least || plain.Step >= least {
			t.Errorf("a step takes %d bytes, %d without previews, expected %d or more", wide.Step, plain.Step, least)
		}
		for decoder, other := range map[string]string{"tiny-thin": "5 channels at 1/8", "tiny-odd": "3 channels at 1/4"} {
			if _, err := loadPreviewing(t, decoder, false); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), other) {
				t.Errorf("error %v for a decoder of latents with %s", err, other)
			}
		}
	})
}
