package termpic

import (
	"bytes"
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
	previewRows = 16   // of a preview at most
	spareRows   = 3    // below a picture: the line of progress, the cursor, and one more
	leastRows   = 3    // where there are fewer nothing is shown
	maxPixels   = 1000 // wide or high: xterm cuts larger sixels off
)

// guessedCell is the size of a character where nothing else is known, but that
// it is about twice as high as it is wide.
var guessedCell = image.Pt(10, 20)

// An extent is how large a picture is shown.
type extent struct {
	pixels     image.Point
	cols, rows int
}

// fit is fitInto for what the terminal's protocol can draw. Sixels come in bands
// of 6 pixels, and some terminals count the last one in full: it must not reach
// into one more line.
func (t *Terminal) fit(picture, cell image.Point, cols, rows, most int) extent {
	f := fitInto(picture, cell, cols, rows, most)
	height := f.pixels.Y
	if down := height - height%6; t.protocol == Sixel && down > 0 && height != down && down+6 > f.rows*cell.Y {
		f.pixels = image.Pt(max(1, (f.pixels.X*down+height/2)/height), down)
	}
	return f
}

// fitInto scales a picture to at most cols x rows cells and its longer side to
// at most most pixels, with its aspect kept.
func fitInto(picture, cell image.Point, cols, rows, most int) extent {
	width, height := float64(picture.X), float64(picture.Y)
	scale := min(float64(cols*cell.X)/width, float64(rows*cell.Y)/height, float64(most)/max(width, height))
	w := max(1, int(width*scale+0.5))
	h := max(1, int(height*scale+0.5))
	return extent{image.Pt(w, h), (w + cell.X - 1) / cell.X, (h + cell.Y - 1) / cell.Y}
}

// Show writes a picture where the cursor is, which must be at the start of a
// line. Afterwards it is at the start of the line below. A picture is as large
// as it is in pixels, but never larger than the terminal, and a small one is
// enlarged to the size of a preview.
func (t *Terminal) Show(picture image.Image) error {
	if t == nil || picture.Bounds().Empty() {
		return nil
	}
	size, cell := t.size(), t.cellOrGuess()
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

func (t *Terminal) cellOrGuess() image.Point {
	if c := t.cell(); c != (image.Point{}) {
		return c
	}
	return guessedCell
}

// A Preview is a picture that is replaced again and again by the next one.
type Preview struct {
	terminal *Terminal
	size     termSize // when the lines were reserved
	rows     int      // reserved for it, 0 if it is not on the screen
	id       uint32   // of kitty's image
}

// NewPreview returns a preview that is not shown yet.
func (t *Terminal) NewPreview() *Preview { return &Preview{terminal: t} }

// Draw returns what shows a picture above the cursor, in the place of the one
// before. When it is written, the cursor must be at the start of the line right
// below the picture before, or of the line where the first one shall begin, and
// nothing may be below. It comes to be right below the picture.
func (p *Preview) Draw(picture image.Image) (string, error) {
	t := p.terminal
	if t == nil || picture.Bounds().Empty() {
		return "", nil
	}
	size, cell := t.size(), t.cellOrGuess()
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
		// the screen may look different now: as if nothing had been there
		start = p.Clear() + reserve(f.rows)
	}
	end := t.forget(p.id) // after the new one is there, or it would flicker
	p.size, p.rows, p.id = size, f.rows, id
	return start + above(f.rows, shown) + end, nil
}

// Clear returns what removes the picture and its lines, under the conditions of
// Draw. The cursor comes to be where the picture began.
func (p *Preview) Clear() string {
	if p.rows == 0 {
		return ""
	}
	rows, id := p.rows, p.id
	p.rows, p.id = 0, 0
	return fmt.Sprintf("\r\x1b[%dA\x1b[J", rows) + p.terminal.forget(id)
}

// reserve makes empty lines and one below, which scrolls the screen if need be:
// nothing that is drawn there may do that.
func reserve(rows int) string { return "\r" + strings.Repeat("\n", rows+1) + "\x1b[1A" }

// above puts what is shown rows lines higher than the cursor, wherever that is
// left by it, and moves the cursor back.
func above(rows int, shown string) string {
	return fmt.Sprintf("\r\x1b[%dA\x1b7%s\x1b8\x1b[%dB", rows, shown, rows)
}

// encode returns what shows a picture right and down of the cursor. Id is of
// kitty's image, 0 for one that is never replaced.
func (t *Terminal) encode(picture image.Image, f extent, id uint32) (string, error) {
	scaled := image.NewRGBA(image.Rectangle{Max: f.pixels})
	if picture.Bounds().Size() == f.pixels {
		draw.Copy(scaled, image.Point{}, picture, picture.Bounds(), draw.Src, nil)
	} else {
		draw.CatmullRom.Scale(scaled, scaled.Bounds(), picture, picture.Bounds(), draw.Src, nil)
	}
	var b bytes.Buffer
	var err error
	switch t.protocol {
	case Kitty:
		err = encodeKitty(&b, scaled, f, t.cell() != image.Point{}, id)
	case ITerm2:
		err = encodeITerm2(&b, scaled, f)
	case Sixel:
		err = encodeSixel(&b, scaled, t.answers.colors)
	}
	return b.String(), err
}

// kittyChunk is how many bytes of data one of kitty's sequences may have.
const kittyChunk = 4096

// encodeKitty leaves the size to the pixels where those of a cell are known,
// since cells have not exactly the aspect of the picture. No answers (q), and
// the cursor stays (C).
func encodeKitty(w io.Writer, picture image.Image, f extent, knownCell bool, id uint32) error {
	file, err := encodePNG(picture)
	if err != nil {
		return err
	}
	data := base64.StdEncoding.EncodeToString(file)
	keys := "a=T,f=100,q=2,C=1"
	if id != 0 {
		keys += fmt.Sprintf(",i=%d,p=1", id)
	}
	if !knownCell {
		keys += fmt.Sprintf(",c=%d,r=%d", f.cols, f.rows)
	}
	for len(data) > kittyChunk {
		if _, err := fmt.Fprintf(w, "\x1b_G%s,m=1;%s\x1b\\", keys, data[:kittyChunk]); err != nil {
			return err
		}
		keys, data = "q=2", data[kittyChunk:]
	}
	_, err = fmt.Fprintf(w, "\x1b_G%s,m=0;%s\x1b\\", keys, data)
	return err
}

// forget removes an image of kitty's from the screen and its memory. The other
// protocols draw over it.
func (t *Terminal) forget(id uint32) string {
	if t == nil || t.protocol != Kitty || id == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b_Ga=d,d=I,i=%d,q=2\x1b\\", id)
}

// randomID returns numbers that other images on the screen will hardly have.
func randomID() func() uint32 {
	id := rand.Uint32N(1<<31) + 1
	return func() uint32 { id++; return id }
}

func encodeITerm2(w io.Writer, picture image.Image, f extent) error {
	file, err := encodePNG(picture)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\x1b]1337;File=inline=1;size=%d;width=%d;height=%d;preserveAspectRatio=1:%s\a",
		len(file), f.cols, f.rows, base64.StdEncoding.EncodeToString(file))
	return err
}

// encodeSixel uses as many colours as the terminal has registers for, 256 if it
// does not say.
func encodeSixel(w io.Writer, picture image.Image, registers int) error {
	if registers < 3 || registers > 256 {
		registers = 256
	}
	e := sixel.NewEncoder(w)
	e.Dither = true
	// one register is the encoder's, for transparency
	e.Palette = median.Quantizer(0).Quantize(make(color.Palette, 0, registers-1), picture)
	for i, c := range e.Palette {
		// Means of colours are never at the ends of the range, so dithering
		// could not reach those: white would be pink.
		r, g, b, _ := c.RGBA()
		e.Palette[i] = color.RGBA{widen(r), widen(g), widen(b), 255}
	}
	return e.Encode(picture)
}

// widen makes 8 bits of 16, and what is within 8 of an end that end: the
// encoder finds colours by their upper 5 bits.
func widen(v uint32) uint8 {
	switch v >>= 8; {
	case v < 8:
		return 0
	case v >= 248:
		return 255
	}
	return uint8(v)
}

func encodePNG(picture image.Image) ([]byte, error) {
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	err := encoder.Encode(&b, picture)
	return b.Bytes(), err
}
