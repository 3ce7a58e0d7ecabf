package shapes_test

import (
	"context"
	"image"
	"io/fs"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/shapes"
)

// TestSize keeps what every copy of the program carries in bounds.
func TestSize(t *testing.T) {
	const limit = 24 << 20
	var size int64
	err := fs.WalkDir(shapes.FS, ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if size > limit {
		t.Errorf("the files have %d bytes, at most %d", size, limit)
	}
}

// TestPicture makes a picture that is right or wrong: prompt to pixels, through
// everything there is.
func TestPicture(t *testing.T) {
	ctx := context.Background()
	m, err := gomflux.OpenFS(ctx, shapes.FS, &gomflux.OpenOptions{Device: "cpu", Defaults: &shapes.Defaults})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, test := range []struct {
		prompt string
		placed func(red, blue image.Point) bool
	}{
		{"a red circle left of a blue square", func(red, blue image.Point) bool { return red.X < blue.X }},
		{"a red circle right of a blue square", func(red, blue image.Point) bool { return red.X > blue.X }},
		{"a red circle above a blue square", func(red, blue image.Point) bool { return red.Y < blue.Y }},
	} {
		seed := uint64(7)
		res, err := m.Generate(ctx, gomflux.Options{Prompt: test.prompt, Seed: &seed})
		if err != nil {
			t.Fatal(err)
		}
		red, reds := center(res.Image, func(r, g, b int) bool { return r > 150 && g < 100 && b < 100 })
		blue, blues := center(res.Image, func(r, g, b int) bool { return b > 150 && r < 100 && g < 130 })
		white, whites := center(res.Image, func(r, g, b int) bool { return min(r, g, b) > 230 })
		t.Logf("%s: %d red pixels at %v, %d blue at %v, %d white", test.prompt, reds, red, blues, blue, whites)
		// the smallest object is 36 pixels across
		if reds < 500 || blues < 500 || whites < 256*256/3 || !test.placed(red, blue) {
			t.Errorf("%s: %d red pixels at %v, %d blue at %v, %d white at %v", test.prompt, reds, red, blues, blue, whites, white)
		}
	}
}

// center is where a colour's pixels are, and how many there are.
func center(img *image.RGBA, is func(r, g, b int) bool) (at image.Point, n int) {
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			if c := img.RGBAAt(x, y); is(int(c.R), int(c.G), int(c.B)) {
				at = at.Add(image.Pt(x, y))
				n++
			}
		}
	}
	return at.Div(max(n, 1)), n
}
