package family_test

import (
	"errors"
	"image"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// declareKontext declares the golden's model with some keys of its index changed.
func declareKontext(t *testing.T, changes map[string]any) family.Pipeline {
	t.Helper()
	d, err := declareChanged(t, "flux1-kontext", map[string]map[string]any{index.File: changes})
	if err != nil {
		t.Fatal(err)
	}
	return d.Pipeline
}

// TestKontextSizes checks the size that a reference image is resized to against what
// diffusers' FluxKontextPipeline hands to its image processor.
func TestKontextSizes(t *testing.T) {
	editor := declareKontext(t, map[string]any{"preferred_sizes": nil}).(family.Editor)
	tests := []struct{ size, want image.Point }{
		{image.Pt(1024, 1024), image.Pt(1024, 1024)}, {image.Pt(16, 16), image.Pt(1024, 1024)},
		{image.Pt(1920, 1080), image.Pt(1392, 752)},
		{image.Pt(1080, 1920), image.Pt(752, 1392)}, {image.Pt(4000, 3000), image.Pt(1184, 880)},
		{image.Pt(3000, 4000), image.Pt(880, 1184)},
		{image.Pt(640, 480), image.Pt(1184, 880)}, {image.Pt(300, 300), image.Pt(1024, 1024)},
		{image.Pt(31, 16), image.Pt(1024, 1024)},
		{image.Pt(32, 16), image.Pt(1456, 720)}, {image.Pt(33, 17), image.Pt(1456, 720)},
		{image.Pt(17, 4000), image.Pt(672, 1568)},
		{image.Pt(4000, 17), image.Pt(1568, 672)}, {image.Pt(50, 75), image.Pt(880, 1184)},
		{image.Pt(75, 50), image.Pt(1184, 880)},
		{image.Pt(672, 1568), image.Pt(672, 1568)}, {image.Pt(832, 1248), image.Pt(832, 1248)},
		{image.Pt(17, 57), image.Pt(672, 1568)},
		{image.Pt(83, 3539), image.Pt(672, 1568)}, {image.Pt(1457, 41), image.Pt(1568, 672)},
		{image.Pt(1753, 36), image.Pt(1568, 672)},
		{image.Pt(608, 34), image.Pt(1568, 672)}, {image.Pt(16, 2715), image.Pt(672, 1568)},
		{image.Pt(55, 57), image.Pt(1024, 1024)},
		{image.Pt(5223, 2731), image.Pt(1392, 752)}, {image.Pt(88, 4616), image.Pt(672, 1568)},
		{image.Pt(384, 868), image.Pt(688, 1504)},
		{image.Pt(53, 4091), image.Pt(672, 1568)}, {image.Pt(936, 4757), image.Pt(672, 1568)},
		{image.Pt(3097, 93), image.Pt(1568, 672)},
		{image.Pt(134, 43), image.Pt(1568, 672)}, {image.Pt(38, 23), image.Pt(1456, 720)},
		{image.Pt(94, 559), image.Pt(672, 1568)},
	}
	for _, test := range tests {
		if err := editor.CheckReference(test.size); err != nil {
			t.Errorf("%v: %v", test.size, err)
		}
		if got := editor.ReferenceSize(test.size, 16); got != test.want {
			t.Errorf("%v: resized to %v, expected %v", test.size, got, test.want)
		}
		if got := editor.EditSize([]image.Point{test.size}, 16); got != test.want {
			t.Errorf("%v: the new image has %v, expected %v", test.size, got, test.want)
		}
	}
	if err := editor.CheckReference(image.Pt(200, 15)); err == nil || !strings.Contains(err.Error(), "16 on each side") {
		t.Errorf("200x15: %v", err)
	}
	// a patch may be larger than a preferred size's share of it
	if got := editor.ReferenceSize(image.Pt(20, 20), 2048); got != image.Pt(2048, 2048) {
		t.Errorf("patches of 2048: %v", got)
	}
}

// TestKontextReferences checks that one image is taken, and that the error for more names
// models that take them.
func TestKontextReferences(t *testing.T) {
	editor := declareKontext(t, nil).(family.Editor)
	if err := editor.CheckReferences(1); err != nil {
		t.Error(err)
	}
	for n, want := range map[int]string{
		0: "this model edits images and needs one (as in gomflux edit; FLUX.1-dev generates from a prompt alone)",
		2: "2 images: this model edits one (flux2-klein-4b, flux3-klein, qwen-image-edit-2509 and qwen-image-2.1 take several)",
	} {
		if err := editor.CheckReferences(n); err == nil || err.Error() != want {
			t.Errorf("%d images: %v, expected %s", n, err, want)
		}
	}
}

// TestKontextOwnSizes refuses preferred sizes that are not pairs of sides.
func TestKontextOwnSizes(t *testing.T) {
	for _, sizes := range [][]int{{40}, {40, 0}, {-1, 40}, {100000, 100000}, {40, 60, 9223372036854775807, 2}} {
		_, err := declareChanged(t, "flux1-kontext", map[string]map[string]any{index.File: {"preferred_sizes": sizes}})
		if !errors.Is(err, errs.ErrUnsupported) || !strings.Contains(err.Error(), "preferred_sizes") {
			t.Errorf("%v: %v", sizes, err)
		}
	}
}
