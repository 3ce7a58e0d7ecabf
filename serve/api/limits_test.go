package api

import (
	"errors"
	"fmt"
	"image"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/engine"
)

// sized is an image without pixels.
func sized(width, height int) image.Image { return &image.Alpha{Rect: image.Rect(0, 0, width, height)} }

func TestLimits(t *testing.T) {
	photo := sized(4032, 3024)
	crop := gomflux.InpaintOptions{Crop: true}
	for name, test := range map[string]struct {
		options gomflux.Options
		edits   bool
		pixels  int    // of the limit, 4 million if 0
		size    string // of the options afterwards, heightxwidth
		warning string
		err     string
	}{
		"nothing":    {size: "0x0"},
		"steps":      {options: gomflux.Options{Steps: 100}, size: "0x0"},
		"many steps": {options: gomflux.Options{Steps: 101}, err: "steps 101: expected at most 100"},
		"a size":     {options: gomflux.Options{Height: 2000, Width: 2000}, size: "2000x2000"},
		"a large size": {options: gomflux.Options{Height: 2001, Width: 2000},
			err: "size 2000x2001: expected at most 4000000 pixels (try "},
		"a large side":      {options: gomflux.Options{Height: 8000}, err: "size 1024x8000"},
		"an overflow":       {options: gomflux.Options{Height: 1 << 32, Width: 1 << 32}, err: "size "},
		"a photo":           {options: gomflux.Options{Image: sized(1600, 1200)}, size: "0x0"},
		"a large photo":     {options: gomflux.Options{Image: photo}, size: "1728x2304", warning: "4032x3024 was scaled down"},
		"the model's limit": {options: gomflux.Options{Image: photo}, pixels: 8e6, size: "0x0", warning: "scaled down"},
		"a photo and a size": {options: gomflux.Options{Image: photo, Height: 3024, Width: 4032},
			err: "size 4032x3024"},
		"a photo and a side": {options: gomflux.Options{Image: sized(400, 100), Height: 1024}, err: "size 4096x1024"},
		"a crop":             {options: gomflux.Options{Image: photo, Mask: photo, Inpaint: crop}, size: "0x0"},
		"a mask":             {options: gomflux.Options{Image: photo, Mask: photo}, size: "1728x2304", warning: "scaled down"},
		"a mask of an edit":  {options: gomflux.Options{Image: photo, Mask: photo}, edits: true, size: "0x0"},
		"a border": {options: gomflux.Options{Image: sized(2000, 1000), Inpaint: gomflux.InpaintOptions{Expand: gomflux.Border{Top: 2000}}},
			size: "2432x1632", warning: "the image of 2000x3000"},
	} {
		r := engine.Request{Options: test.options}
		m := engine.ModelInfo{Name: "m", Edits: test.edits, SizeMultiple: 32, Defaults: gomflux.Defaults{Height: 1024, Width: 1024}}
		pixels := test.pixels
		if pixels == 0 {
			pixels = 4e6
		}
		err := CheckLimits(&r, m, pixels, 100)
		if test.err != "" {
			if !errors.Is(err, gomflux.ErrRequest) || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: %v, expected %s", name, err, test.err)
			}
			continue
		}
		size := fmt.Sprintf("%dx%d", r.Options.Height, r.Options.Width)
		warnings := strings.Join(r.Warnings, "\n")
		if err != nil || size != test.size || (warnings == "") != (test.warning == "") || !strings.Contains(warnings, test.warning) {
			t.Errorf("%s: %s, warnings %q, %v; expected %s, %q", name, size, warnings, err, test.size, test.warning)
		}
	}
}
