package generate

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/picture"
)

// makeFolder creates a folder unless it exists, and checks that files can be written
// to it. It reports whether it created the folder.
func makeFolder(dir string) (made bool, err error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Mkdir(dir, 0o777); err != nil {
			return false, fmt.Errorf("folder %s: %w", dir, oserr.Bare(err))
		}
		made = true
	case err != nil:
		return false, fmt.Errorf("folder %s: %w", dir, oserr.Bare(err))
	case !info.IsDir():
		return false, fmt.Errorf("folder %s: is a file", dir)
	}
	f, err := cli.NewTemporary(filepath.Join(dir, "x"))
	if err != nil {
		return made, err
	}
	f.Discard()
	return made, nil
}

// A sheetStep is the image of a step, as large as on the contact sheet, and its label.
type sheetStep struct {
	image *image.RGBA
	label string
}

// newSheetStep shrinks the image of a step immediately: fifty large ones would take
// gigabytes until the sheet is drawn.
func newSheetStep(img *image.RGBA, label string) sheetStep {
	const most = 384 // pixels, of the longer side
	size := img.Rect.Size()
	shrink := min(1, most/float64(max(size.X, size.Y)))
	w, h := max(1, int(float64(size.X)*shrink)), max(1, int(float64(size.Y)*shrink))
	return sheetStep{picture.Resize(img, w, h), label}
}

// contactSheet draws steps, at least one, in rows on one image.
func contactSheet(steps []sheetStep) *image.RGBA {
	const gap, line = 8, 16
	size := steps[0].image.Rect.Size()
	w, h := size.X, size.Y
	columns := int(math.Ceil(math.Sqrt(float64(len(steps)))))
	rows := (len(steps) + columns - 1) / columns
	sheet := image.NewRGBA(image.Rect(0, 0, gap+columns*(w+gap), gap+rows*(h+line+gap)))
	draw.Draw(sheet, sheet.Rect, image.NewUniform(color.Gray{0xdd}), image.Point{}, draw.Src)
	for i, s := range steps {
		at := image.Pt(gap+i%columns*(w+gap), gap+i/columns*(h+line+gap))
		draw.Draw(sheet, image.Rectangle{at, at.Add(image.Pt(w, h))}, s.image, s.image.Rect.Min, draw.Src)
		d := font.Drawer{Dst: sheet, Src: image.Black, Face: basicfont.Face7x13, Dot: fixed.P(at.X, at.Y+h+13)}
		d.DrawString(s.label)
	}
	return sheet
}
