package generate

import (
	"fmt"
	"image"
	"image/color"
	"testing"
)

func TestContactSheet(t *testing.T) {
	for _, test := range []struct {
		steps, width, height int
		want                 image.Point
		columns              int
		cell                 image.Point // of a picture
	}{
		{1, 40, 24, image.Pt(8+48, 8+48), 1, image.Pt(40, 24)},
		{2, 40, 24, image.Pt(8+2*48, 8+48), 2, image.Pt(40, 24)},
		{3, 40, 24, image.Pt(8+2*48, 8+2*48), 2, image.Pt(40, 24)},
		{5, 40, 24, image.Pt(8+3*48, 8+2*48), 3, image.Pt(40, 24)},
		{1, 768, 512, image.Pt(8+392, 8+280), 1, image.Pt(384, 256)},
		{1, 1, 3840, image.Pt(8+9, 8+408), 1, image.Pt(1, 384)},
	} {
		t.Run(fmt.Sprintf("%d of %dx%d", test.steps, test.width, test.height), func(t *testing.T) {
			var steps []sheetStep
			for i := range test.steps {
				img := image.NewRGBA(image.Rect(0, 0, test.width, test.height))
				for j := range img.Pix {
					img.Pix[j] = 255
					if j%4 == 0 {
						img.Pix[j] = uint8(40 * i)
					}
				}
				steps = append(steps, newSheetStep(img, fmt.Sprint(i+1)))
			}
			sheet := contactSheet(steps)
			if got := sheet.Rect.Size(); got != test.want {
				t.Fatalf("size %v, expected %v", got, test.want)
			}
			grey := color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
			if got := sheet.RGBAAt(0, 0); got != grey {
				t.Errorf("the corner is %v", got)
			}
			for i := range steps {
				at := image.Pt(8+i%test.columns*(test.cell.X+8), 8+i/test.columns*(test.cell.Y+24))
				want := color.RGBA{uint8(40 * i), 255, 255, 255}
				for _, corner := range []image.Point{at, at.Add(test.cell).Sub(image.Pt(1, 1))} {
					if got := sheet.RGBAAt(corner.X, corner.Y); got != want {
						t.Errorf("picture %d has %v at %v, expected %v", i+1, got, corner, want)
					}
				}
				black := 0
				for y := at.Y + test.cell.Y; y < at.Y+test.cell.Y+16; y++ {
					for x := at.X; x < at.X+7; x++ {
						if sheet.RGBAAt(x, y) == (color.RGBA{0, 0, 0, 255}) {
							black++
						}
					}
				}
				if black < 8 {
					t.Errorf("picture %d has no label", i+1)
				}
			}
		})
	}
}
