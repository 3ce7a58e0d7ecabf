package gomflux_test

import (
	"bytes"
	"image"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// counted returns a grey image that counts how often it is read.
func counted(width, height int) *modeltest.CountedGray {
	img := &modeltest.CountedGray{Gray: image.NewGray(image.Rect(0, 0, width, height))}
	for i := range img.Pix {
		img.Pix[i] = uint8(7 * i)
	}
	return img
}

// Images that were prepared are read once for all seeds, and others instead of them always.
func TestPrepareImages(t *testing.T) {
	for _, test := range []struct {
		name, model string
		use         func(o *gomflux.Options, img image.Image)
	}{
		{"reference", "models/testdata/flux2-klein/model", func(o *gomflux.Options, img image.Image) { o.References = []image.Image{img} }},
		{"two references", "models/testdata/qwen-edit-plus/model", func(o *gomflux.Options, img image.Image) {
			o.References = []image.Image{image.NewRGBA(image.Rect(0, 0, 80, 64)), img}
		}},
		{"start", tiny, func(o *gomflux.Options, img image.Image) { o.Image = img }},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := gomflux.Open(t.Context(), test.model, onCPU(nil))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			img, other := counted(80, 64), counted(80, 64)
			other.Pix[1000] += 100
			o := gomflux.Options{Prompt: "a red hat", Steps: 2, Height: 64, Width: 80}
			seeds := []uint64{1, 2, 1}
			made := func(o gomflux.Options) (all [][]uint8) {
				for _, seed := range seeds {
					o.Seed = &seed
					all = append(all, generate(t, m, o).Image.Pix)
				}
				return all
			}
			test.use(&o, img)
			want := made(o)
			each := img.Reads / len(seeds)
			if each == 0 || img.Reads != each*len(seeds) {
				t.Fatalf("images that are not prepared were read %d times", img.Reads)
			}
			img.Reads = 0
			o.PrepareImages()
			got := made(o)
			for i, pix := range got {
				if !bytes.Equal(pix, want[i]) {
					t.Errorf("image %d differs with prepared images", i)
				}
			}
			if bytes.Equal(got[0], got[1]) || !bytes.Equal(got[0], got[2]) || img.Reads != each {
				t.Errorf("the image was read %d times, expected %d", img.Reads, each)
			}
			test.use(&o, other)
			if changed := made(o); bytes.Equal(changed[0], want[0]) || other.Reads != each {
				t.Errorf("another image: the same result: %t, read %d times", bytes.Equal(changed[0], want[0]), other.Reads)
			}
			test.use(&o, img)
			o.ForgetPrepared()
			img.Pix[1000] += 100
			if changed := made(o); bytes.Equal(changed[0], want[0]) || img.Reads != (1+len(seeds))*each {
				t.Errorf("without prepared images: the same result: %t, read %d times", bytes.Equal(changed[0], want[0]), img.Reads)
			}
		})
	}
}
