package shapes_test

import (
	"context"
	"image"
	"image/color"
	"io/fs"
	"math"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/shapes"
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

// TestPicture generates an image that can be checked against its prompt.
func TestPicture(t *testing.T) {
	ctx := context.Background()
	m, err := gomflux.Open(ctx, "shapes", &gomflux.OpenOptions{Device: "cpu"})
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

// TestPreview holds the projection of latents against the decoder.
func TestPreview(t *testing.T) {
	ctx := context.Background()
	m, err := gomflux.OpenVAE(ctx, "shapes", &gomflux.OpenOptions{Device: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	const side, block = 256, 8
	want := image.NewRGBA(image.Rect(0, 0, side, side))
	for y := range side {
		for x := range side {
			c := color.RGBA{240, 240, 240, 255}
			switch {
			case (x-80)*(x-80)+(y-90)*(y-90) < 50*50:
				c = color.RGBA{210, 30, 30, 255}
			case x > 140 && x < 220 && y > 130 && y < 210:
				c = color.RGBA{30, 60, 200, 255}
			}
			want.SetRGBA(x, y, c)
		}
	}
	latents, err := m.Encode(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Preview(ctx, latents)
	if err != nil {
		t.Fatal(err)
	}
	if got.Bounds().Dx() != side/block || got.Bounds().Dy() != side/block {
		t.Fatalf("a preview of %v", got.Bounds())
	}
	var off float64
	for y := range side / block {
		for x := range side / block {
			g, w := got.RGBAAt(x, y), want.RGBAAt(x*block+block/2, y*block+block/2)
			for _, d := range []int{int(g.R) - int(w.R), int(g.G) - int(w.G), int(g.B) - int(w.B)} {
				off += float64(d * d)
			}
		}
	}
	rms := math.Sqrt(off / (3 * side / block * side / block))
	t.Logf("off by %.1f of 255", rms)
	if rms > 60 { // this autoencoder is far from linear
		t.Errorf("the preview is off by %.1f of 255", rms)
	}
}

// TestUpscaler enlarges a circle and a triangle by the network for shapes, which is far nearer to them than a filter.
func TestUpscaler(t *testing.T) {
	const side, scale = 256, 4
	large, small := image.NewRGBA(image.Rect(0, 0, side, side)), image.NewRGBA(image.Rect(0, 0, side/scale, side/scale))
	for y := range side {
		for x := range side {
			fx, fy := float64(x)+0.5, float64(y)+0.5
			circle := 40 - math.Hypot(fx-70.3, fy-82.6)
			triangle := min(fy-120, (230-fy)*0.5-math.Abs(fx-170)*math.Sqrt(0.75))
			share := func(distance float64) float64 { return min(1, max(0, distance+0.5)) }
			for i, background := range []float64{255, 255, 255} {
				v := background + share(circle)*([]float64{220, 20, 20}[i]-background)
				v += share(triangle) * ([]float64{20, 60, 220}[i] - v)
				large.Pix[large.PixOffset(x, y)+i] = uint8(math.Round(v))
			}
			large.Pix[large.PixOffset(x, y)+3] = 255
		}
	}
	for i := range small.Pix {
		sum, at := 0, large.PixOffset(i/4%(side/scale)*scale, i/4/(side/scale)*scale)+i%4
		for j := range scale * scale {
			sum += int(large.Pix[at+j/scale*large.Stride+j%scale*4])
		}
		small.Pix[i] = uint8((sum + scale*scale/2) / (scale * scale))
	}
	psnr := map[string]float64{}
	for _, name := range []string{"shapes", gomflux.Lanczos} {
		u, err := gomflux.OpenUpscaler(t.Context(), name, &gomflux.OpenOptions{Device: "cpu"})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		found, err := u.Upscale(t.Context(), small, &gomflux.UpscaleOptions{Scale: scale})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for i, v := range found.(*image.RGBA).Pix {
			d := float64(v) - float64(large.Pix[i])
			sum += d * d / (side * side * 3)
		}
		psnr[name] = 10 * math.Log10(255*255/sum)
	}
	t.Logf("PSNR %v", psnr)
	if psnr["shapes"] < psnr[gomflux.Lanczos]+4 {
		t.Errorf("PSNR %v, expected 4 dB more for shapes", psnr)
	}
}
