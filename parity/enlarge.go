package parity

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/picture"
)

// loadUpscaler loads the network of the run, which enlarges an image, in place of a pipeline.
func (r *replay) loadUpscaler() error {
	if r.Quantize != nil || len(r.LoRAs) > 0 || r.Group != nil || r.Loaded != nil {
		return fmt.Errorf("run %s: %w with options for pipelines: its network enlarges images", r.run, ErrRun)
	}
	s := r.ref.Settings
	img, err := r.readImage(s.Picture)
	if err != nil {
		return err
	}
	u, err := models.LoadUpscaler(r.fsys, models.LoadOptions{Device: r.Device, Dtype: r.Dtype})
	if err != nil {
		return err
	}
	r.model, r.pipeline, r.passNames, r.untapped = u, u.Pipeline(), passNames{r.ref, false}, untappedOfAll()
	r.generate = func(q models.Request) (*models.Result, error) {
		u.Observe(q.Hook, q.Forked)
		defer u.Observe(nil, nil)
		large, err := u.Upscale(img, image.Pt(s.Width, s.Height), models.Restoration{Seed: s.Seed, Colours: s.ColorCorrection}, nil)
		if err != nil {
			return nil, err
		}
		return &models.Result{Image: picture.Opaque(large)}, nil
	}
	return nil
}
