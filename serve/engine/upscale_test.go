package engine

import (
	"errors"
	"image"
	"testing"
	"testing/synctest"

	"github.com/gomflux/gomflux"
)

// TestUpscale checks that images are enlarged in turn, next to the model in memory.
func TestUpscale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		e := New(w.config())
		defer e.Close(t.Context())
		var sizes []image.Point
		gray := image.NewGray(image.Rect(0, 0, 3, 3))
		submit := func(side int) *Job {
			j, err := e.Submit(t.Context(), Request{Client: "x", Upscale: &Upscaling{
				Upscaler: gomflux.Lanczos, Images: []image.Image{image.NewGray(image.Rect(0, 0, side, 7)), gray},
				UpscaleOptions: gomflux.UpscaleOptions{Scale: 3}, MaxPixels: 300,
				Done: func(large image.Image) { sizes = append(sizes, large.Bounds().Size()) },
			}})
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
		first, err := e.Submit(t.Context(), Request{Client: "x", Model: "a", Seeds: []uint64{1}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		good, canceled, large := submit(4), submit(4), submit(5)
		if s := good.Status(); s.State != Queued || s.Ahead != 1 || s.Model != gomflux.Lanczos || len(sizes) > 0 {
			t.Errorf("%+v, sizes %v", s, sizes)
		}
		canceled.Cancel()
		if err := good.Wait(t.Context()); err != nil || len(sizes) != 2 || sizes[0] != image.Pt(12, 21) || sizes[1] != image.Pt(9, 9) {
			t.Errorf("%v, sizes %v", err, sizes)
		}
		s := good.Status()
		if s.Step != 2*upscalingSteps || s.Steps != s.Step || good.submitted().Upscale != nil || first.Status().State != Done {
			t.Errorf("%+v, first %+v", s, first.Status())
		}
		if err := large.Wait(t.Context()); !errors.Is(err, gomflux.ErrRequest) || canceled.Status().State != Canceled || len(sizes) != 2 {
			t.Errorf("%v, %v, sizes %v", err, canceled.Status().State, sizes)
		}
		if m := e.Models()[0]; !m.Loaded {
			t.Error("the model was freed")
		}
	})
}
