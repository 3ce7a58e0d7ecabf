package generate

import (
	"context"
	"fmt"
	"image"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/termpic"
)

// openTerminals finds out how the terminal shows previews and results.
func (g *generation) openTerminals(ctx context.Context) {
	if g.out.Format != ui.Text {
		return
	}
	if g.preview.Given() {
		g.previews = termpic.Open(ctx, g.out.Stderr, g.preview.OrZero())
	}
	switch show := g.show.OrZero(); {
	case !g.show.Given():
	case show == g.preview.OrZero():
		g.results = g.previews
	default:
		g.results = termpic.Open(ctx, g.out.Stderr, show)
	}
}

// step shows a preview of a step, and saves its image with
// --stepwise-image-output-dir: a preview too, if an autoencoder decodes these.
func (g *generation) step(ctx context.Context, first int, s gomflux.Step, steps [][]sheetStep) error {
	defer g.profile.Callback()()
	var img *image.RGBA
	var err error
	if g.previews != nil && s.Index == 0 {
		if img, err = g.model.Preview(ctx, s.Denoised); err != nil {
			return err
		}
		g.report.shown.Preview(img)
	}
	if g.stepwise == "" {
		return nil
	}
	decode := g.model.Decode
	if g.model.PreviewDecoder() != gomflux.LinearPreviews {
		decode = g.model.Preview
	}
	if img, err = decode(ctx, s.Latents); err != nil {
		return err
	}
	steps[s.Index] = append(steps[s.Index], newSheetStep(img, fmt.Sprintf("%d/%d", s.Step, s.Steps)))
	return g.saveStep(ctx, fmt.Sprintf("%s_step%dof%d.png", g.stepName(first+s.Index), s.Step, s.Steps), img)
}
