package termpic

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/mattn/go-sixel"
	"github.com/soniakeys/quant/median"
	"golang.org/x/image/draw"
)

const (
	previewRows = 16   // largest height of a preview
	spareRows   = 3    // below an image: the progress line, the cursor, and one more
	leastRows   = 3    // smallest height at which an image is shown
	maxPixels   = 1000 // of the longer side: xterm truncates larger sixels
)

// guessedCell is the assumed size of a character if the real one is unknown. Most
// are about twice as high as wide.
var guessedCell = image.Pt(10, 20)

// An extent is the size of an image on the screen.
type extent struct {
	pixels     image.Point
	cols, rows int
}

// fit is fitInto with the constraints of the terminal's protocol. Sixels come in
// bands of 6 pixels, and some terminals count the last band in full, so that band
// must not reach into another line.
func (t *Terminal) fit(picture, cell image.Point, cols, rows, most int) extent {
	f := fitInto(picture, cell, cols, rows, most)
	height := f.pixels.Y
	if down := height - height%6; t.protocol == Sixel && down > 0 && height != down && down+6 > f.rows*cell.Y {
		f.pixels = image.Pt(max(1, (f.pixels.X*down+height/2)/height), down)
	}
	return f
}

// fitInto scales an image to at most cols x rows cells and its longer side to at
// most most pixels. It keeps the aspect ratio.
func fitInto(picture, cell image.Point, cols, rows, most int) extent {
	width, height := float64(picture.X), float64(picture.Y)
	scale := min(float64(cols*cell.X)/width, float64(rows*cell.Y)/height, float64(most)/max(width, height))
	w := max(1, int(width*scale+0.5))
	h := max(1, int(height*scale+0.5))
	return extent{image.Pt(w, h), (w + cell.X - 1) / cell.X, (h + cell.Y - 1) / cell.Y}
}

// Show writes an image at the cursor, which must be at the start of a line, and
// leaves the cursor at the start of the line below the image. The image has its
// size in pixels, except that large images are scaled down to the terminal and
// small ones are enlarged to the size of a preview.
func (t *Terminal) Show(picture image.Image) error {
	if t == nil || picture.Bounds().Empty() {
		return nil
	}
	size, cell := t.size(), cmp.Or(t.cell(), guessedCell)
	rows := size.rows - spareRows
	if rows < leastRows || size.cols < 1 {
		return nil
	}
	pixels := picture.Bounds().Size()
	most := min(maxPixels, max(pixels.X, pixels.Y, previewRows*cell.Y))
	f := t.fit(pixels, cell, size.cols, rows, most)
	shown, err := t.encode(picture, f, 0)
	if err != nil {
		return err
	}
	_, err = t.out.WriteString(reserve(f.rows) + above(f.rows, shown))
	return err
}

// A Preview is an image on the screen that can be replaced by the next one.
type Preview struct {
	terminal *Terminal
	size     termSize // when the lines were reserved
	rows     int      // reserved lines, 0 if it is not on the screen
	id       uint32   // of kitty's image
}

// NewPreview returns a preview that is not on the screen yet.
func (t *Terminal) NewPreview() *Preview { return &Preview{terminal: t} }

// Draw returns the bytes that show an image above the cursor, in place of the
// previous one. When they are written, the cursor must be at the start of the line
// below the previous image or, for the first image, of the line where it shall
// begin, and there must be nothing below. Afterwards the cursor is right below the
// image.
func (p *Preview) Draw(picture image.Image) (string, error) {
	t := p.terminal
	if t == nil || picture.Bounds().Empty() {
		return "", nil
	}
	size, cell := t.size(), cmp.Or(t.cell(), guessedCell)
	rows := min(previewRows, size.rows-spareRows)
	if rows < leastRows || size.cols < 1 {
		return p.Clear(), nil
	}
	f := t.fit(picture.Bounds().Size(), cell, size.cols, rows, maxPixels)
	id := t.nextID()
	shown, err := t.encode(picture, f, id)
	if err != nil {
		return "", err
	}
	start := ""
	if p.rows != f.rows || p.size != size {
		// after a resize the old position is unknown: start again
		start = p.Clear() + reserve(f.rows)
	}
	end := t.forget(p.id) // after the new image is drawn, to avoid flicker
	p.size, p.rows, p.id = size, f.rows, id
	return start + above(f.rows, shown) + end, nil
}

// Clear returns the bytes that remove the image and its lines, under the conditions
// of Draw. Afterwards the cursor is where the image began.
func (p *Preview) Clear() string {
	if p.rows == 0 {
		return ""
	}
	rows, id := p.rows, p.id
	p.rows, p.id = 0, 0
	return fmt.Sprintf("\r\x1b[%dA\x1b[J", rows) + p.terminal.forget(id)
}

// reserve creates empty lines and one below them. This scrolls the screen if
// necessary, so that drawing does not.
func reserve(rows int) string { return "\r" + strings.Repeat("\n", rows+1) + "\x1b[1A" }

// above moves the cursor up by rows lines, writes shown, and restores the cursor.
func above(rows int, shown string) string {
	return fmt.Sprintf("\r\x1b[%dA\x1b7%s\x1b8\x1b[%dB", rows, shown, rows)
}

// encode returns the bytes that show an image to the right of and below the cursor.
// id is that of kitty's image, 0 for one that is never replaced.
func (t *Terminal) encode(picture image.Image, f extent, id uint32) (string, error) {
	scaled := image.NewRGBA(image.Rectangle{Max: f.pixels})
	draw.CatmullRom.Scale(scaled, scaled.Bounds(), picture, picture.Bounds(), draw.Src, nil)
	var b bytes.Buffer
	if t.protocol == Sixel {
		err := encodeSixel(&b, scaled, t.answers.colors)
		return b.String(), err
	}
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&b, scaled); err != nil {
		return "", err
	}
	data := base64.StdEncoding.EncodeToString(b.Bytes())
	if t.protocol == ITerm2 {
		return fmt.Sprintf("\x1b]1337;File=inline=1;size=%d;width=%d;height=%d;preserveAspectRatio=1:%s\a",
			b.Len(), f.cols, f.rows, data), nil
	}
	return kittySequences(data, f, t.cell() != image.Point{}, id), nil
}

// kittyChunk is the largest number of data bytes in a sequence of kitty's.
const kittyChunk = 4096

// kittySequences specify the size in cells only if the cell's size in pixels is
// unknown, since whole cells change the aspect ratio. They request no answers (q)
// and no movement of the cursor (C).
func kittySequences(data string, f extent, knownCell bool, id uint32) string {
	var b strings.Builder
	keys := "a=T,f=100,q=2,C=1"
	if id != 0 {
		keys += fmt.Sprintf(",i=%d,p=1", id)
	}
	if !knownCell {
		keys += fmt.Sprintf(",c=%d,r=%d", f.cols, f.rows)
	}
	for len(data) > kittyChunk {
		fmt.Fprintf(&b, "\x1b_G%s,m=1;%s\x1b\\", keys, data[:kittyChunk])
		keys, data = "q=2", data[kittyChunk:]
	}
	fmt.Fprintf(&b, "\x1b_G%s,m=0;%s\x1b\\", keys, data)
	return b.String()
}

// forget removes a kitty image from the screen and from the terminal's memory. With
// the other protocols new images are drawn over old ones.
func (t *Terminal) forget(id uint32) string {
	if t == nil || t.protocol != Kitty || id == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b_Ga=d,d=I,i=%d,q=2\x1b\\", id)
}

// randomID returns a generator of IDs that other images on the screen are unlikely
// to have.
func randomID() func() uint32 {
	id := rand.Uint32N(1<<31) + 1
	return func() uint32 { id++; return id }
}

// encodeSixel uses as many colours as the terminal has registers, 256 if the number
// is unknown.
func encodeSixel(w io.Writer, picture image.Image, registers int) error {
	if registers < 3 || registers > 256 {
		registers = 256
	}
	e := sixel.NewEncoder(w)
	e.Dither = true
	// the encoder uses one register for transparency
	e.Palette = median.Quantizer(0).Quantize(make(color.Palette, 0, registers-1), picture)
	for i, c := range e.Palette {
		// Averages of colours are never at the ends of the range, so dithering could
		// not reach them: white would be pink.
		r, g, b, _ := c.RGBA()
		e.Palette[i] = color.RGBA{widen(r), widen(g), widen(b), 255}
	}
	return e.Encode(picture)
}

// widen converts 16 bits to 8 and rounds values within 8 of an end of the range to
// that end, since the encoder compares colours by their upper 5 bits.
func widen(v uint32) uint8 {
	switch v >>= 8; {
	case v < 8:
		return 0
	case v >= 248:
		return 255
	}
	return uint8(v)
}
