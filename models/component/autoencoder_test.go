package component_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

func TestNewAutoencoder(t *testing.T) {
	keep := func(component.Config) error { return nil }
	for class, want := range map[string]struct {
		scale, channels int
		unscaled        []int
	}{
		"":                         {1, 4, []int{4, 3, 5}},
		"AutoencoderKL":            {1, 4, []int{4, 3, 5}},
		"AutoencoderKLFlux2":       {16, 128, []int{32, 6, 10}},
		"AutoencoderKLQwenImage":   {8, 16, []int{16, 3, 5}},
		"AutoencoderKLQwenImage21": {16, 64, []int{64, 3, 5}},
		"AutoencoderTiny":          {8, 4, []int{4, 3, 5}},
	} {
		m, err := component.Find(class).NewAutoencoder(keep)
		if err != nil {
			t.Fatal(err)
		}
		if m.ScaleFactor() != want.scale || m.LatentChannels() != want.channels || !slices.Equal(m.Unscaled(3, 5), want.unscaled) {
			t.Errorf("%q: scale %d, %d channels, unscaled %v, expected %v", class, m.ScaleFactor(), m.LatentChannels(),
				m.Unscaled(3, 5), want)
		}
		if got, want := component.Find(class).HasAlpha(), class == "AutoencoderKLQwenImage21"; got != want {
			t.Errorf("%q: HasAlpha is %v, expected %v", class, got, want)
		}
		broken := errors.New("broken")
		if _, err := component.Find(class).NewAutoencoder(func(component.Config) error { return broken }); err != broken {
			t.Errorf("%s: found %v, expected what reading returned", class, err)
		}
	}
	for _, class := range []string{"AutoencoderDC", "CLIPTextModel"} {
		fsys := fstest.MapFS{"vae/config.json": {Data: []byte(`{"_class_name": "` + class + `"}`)}}
		_, _, err := component.DeclareAutoencoder(&component.Folder{FS: fsys, Points: &hooks.Points{}}, "vae")
		if !errors.Is(err, errs.ErrUnsupported) || !strings.Contains(err.Error(),
			`class "`+class+`": expected one of AutoencoderKL, AutoencoderKLFlux2, AutoencoderKLQwenImage, `+
				`AutoencoderKLQwenImage21, AutoencoderTiny`) {
			t.Errorf("%s: error %v", class, err)
		}
	}
}
