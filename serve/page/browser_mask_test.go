package page_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
)

// photo writes an image in several colours, and returns its path.
func (b *browser) photo(name string, w, h int) string {
	b.Helper()
	var file bytes.Buffer
	if err := png.Encode(&file, coloured(w, h, 200)); err != nil {
		b.Fatal(err)
	}
	return b.write(name, file.Bytes())
}

// rotated writes a JPEG whose EXIF orientation turns it by 90 degrees, and returns its path.
func (b *browser) rotated(name string, w, h int) string {
	b.Helper()
	var file bytes.Buffer
	if err := jpeg.Encode(&file, coloured(w, h, 200), nil); err != nil {
		b.Fatal(err)
	}
	const exif = "Exif\x00\x00" + "MM\x00\x2a\x00\x00\x00\x08" + "\x00\x01" +
		"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00" + "\x00\x00\x00\x00" // the tag 0x112 is 6
	const start = 2 // bytes of SOI
	app1 := append([]byte{0xff, 0xe1, 0, byte(len(exif) + 2)}, exif...)
	return b.write(name, slices.Insert(file.Bytes(), start, app1...))
}

// A view is where a photo of some size is on the screen.
type view struct {
	size                     image.Point
	left, top, width, height float64
}

// paint opens the painter for the photo of the form.
func (b *browser) paint(size image.Point) view {
	b.Helper()
	b.run(chromedp.Click("#paint"), chromedp.WaitVisible("#painter-mask"))
	b.wait(fmt.Sprintf(`document.getElementById("painter-state").textContent.includes("of %dx%d pixels")`, size.X, size.Y))
	return b.view(size)
}

// paintPhoto drops a photo on the form, and opens the painter for it.
func (b *browser) paintPhoto(size image.Point) view {
	b.Helper()
	b.drop("#start", b.photo("photo.png", size.X, size.Y))
	b.wait(`!document.getElementById("mask").hidden`)
	return b.paint(size)
}

func (b *browser) view(size image.Point) view {
	b.Helper()
	r := evaluate[[]float64](b, `(async () => {
		await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))); // of a new layout
		const r = document.getElementById("painter-mask").getBoundingClientRect();
		return [r.x, r.y, r.width, r.height];
	})()`)
	return view{size, r[0], r[1], r[2], r[3]}
}

// screen returns the whole pixel of the screen at a place of the photo, from 0 to 1.
func (v view) screen(x, y float64) (float64, float64) {
	return math.Round(v.left + x*v.width), math.Round(v.top + y*v.height)
}

// pixel returns the pixel of the photo at a place.
func (v view) pixel(x, y float64) image.Point {
	sx, sy := v.screen(x, y)
	return image.Pt(int(math.Floor((sx-v.left)/v.width*float64(v.size.X))), int(math.Floor((sy-v.top)/v.height*float64(v.size.Y))))
}

// mouse draws a line with the mouse, between places of the photo.
func (b *browser) mouse(v view, x0, y0, x1, y1 float64) {
	b.Helper()
	left := func(p *input.DispatchMouseEventParams) {
		p.Button, p.Buttons, p.ClickCount = input.MouseButtonLeft, 1, 1
	}
	fromX, fromY := v.screen(x0, y0)
	toX, toY := v.screen(x1, y1)
	b.run(chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, fromX, fromY, left),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, toX, toY, left),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, toX, toY, left))
}

// touch sends an event of fingers at places of the screen.
func (b *browser) touch(kind input.DispatchTouchEventType, points ...[2]float64) {
	b.Helper()
	p := input.DispatchTouchEventParams{Type: kind, TouchPoints: []*input.TouchPoint{}}
	for i, at := range points {
		p.TouchPoints = append(p.TouchPoints, &input.TouchPoint{X: at[0], Y: at[1], ID: new(float64(i + 1))})
	}
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.DispatchTouchEvent, p)
		return err
	}))
}

// finger draws a line with a finger.
func (b *browser) finger(v view, x0, y0, x1, y1 float64) {
	b.Helper()
	fromX, fromY := v.screen(x0, y0)
	toX, toY := v.screen(x1, y1)
	b.touch(input.DispatchTouchEventTypeTouchStart, [2]float64{fromX, fromY})
	b.touch(input.DispatchTouchEventTypeTouchMove, [2]float64{toX, toY})
	b.touch(input.DispatchTouchEventTypeTouchEnd)
}

// set sets the value of a slider.
func (b *browser) set(id string, value float64) {
	b.Helper()
	b.text(fmt.Sprintf(`(() => {
		const slider = document.getElementById(%q);
		slider.value = %v;
		slider.dispatchEvent(new Event("input"));
	})()`, id, value))
}

// painted takes the mask of the painter, and returns it as the form has it.
func (b *browser) painted() *image.Gray {
	b.Helper()
	b.run(chromedp.Click("#painter-done"))
	b.wait(`!document.getElementById("painter").open && document.querySelector("#mask .chosen img")`)
	_, text, _ := strings.Cut(b.text(`document.querySelector("#mask .chosen img").src`), ",")
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		b.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	return img.(*image.Gray)
}

// stroke paints the pixels whose centres are within size/2 of a line between the centres of two.
func stroke(mask *image.Gray, from, to image.Point, size float64, value uint8) {
	d := to.Sub(from)
	for y := range mask.Rect.Dy() {
		for x := range mask.Rect.Dx() {
			p := image.Pt(x, y).Sub(from)
			along := 0.0
			if d != (image.Point{}) {
				along = min(1, max(0, float64(p.X*d.X+p.Y*d.Y)/float64(d.X*d.X+d.Y*d.Y)))
			}
			if math.Hypot(float64(p.X)-along*float64(d.X), float64(p.Y)-along*float64(d.Y)) <= size/2+1e-9 {
				mask.SetGray(x, y, color.Gray{Y: value})
			}
		}
	}
}

// same compares all pixels of two masks.
func (b *browser) same(name string, got, want image.Image) {
	b.Helper()
	if got.Bounds() != want.Bounds() {
		b.Fatalf("%s: the mask is %v, expected %v", name, got.Bounds(), want.Bounds())
	}
	differ, white := 0, 0
	for y := range want.Bounds().Dy() {
		for x := range want.Bounds().Dx() {
			w := color.GrayModel.Convert(want.At(x, y))
			if w.(color.Gray).Y != 0 {
				white++
			}
			if color.GrayModel.Convert(got.At(x, y)) != w {
				if differ++; differ < 4 {
					b.Errorf("%s: pixel %d,%d is %v, expected %v", name, x, y, got.At(x, y), want.At(x, y))
				}
			}
		}
	}
	if differ > 0 || white == 0 {
		b.Fatalf("%s: %d of %d pixels differ; %d were painted", name, differ, want.Bounds().Dx()*want.Bounds().Dy(), white)
	}
}

// TestPaintMask paints on photos of several sizes, with the mouse and a finger, on screens of several
// sizes and scales, and compares all pixels of the mask that the model gets.
func TestPaintMask(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "a hat"), chromedp.SendKeys("#steps", "1"))
	desktop := chromedp.EmulateViewport(1280, 900)
	for i, c := range []struct {
		name   string
		file   string
		size   image.Point
		screen chromedp.Action[chromedp.Void]
		draw   func(v view, x0, y0, x1, y1 float64)
		brush  float64
		zoom   float64 // as a power of 2
	}{
		{"larger than the screen", b.photo("large.png", 1900, 1000), image.Pt(1900, 1000), desktop, b.mouse, 90, 0},
		{"zoomed", b.photo("zoomed.png", 1900, 1000), image.Pt(1900, 1000), desktop, b.mouse, 9, 2},
		{"tiny", b.photo("tiny.png", 5, 3), image.Pt(5, 3), desktop, b.mouse, 1, 0},
		{"turned by EXIF", b.rotated("turned.jpg", 90, 60), image.Pt(60, 90), desktop, b.mouse, 11, 0},
		{"a phone", b.photo("phone.png", 700, 1200), image.Pt(700, 1200), phone(), b.finger, 60, 0},
		{"a zoomed phone", b.photo("small.png", 64, 48), image.Pt(64, 48), phone(), b.finger, 4, 1.5},
		{
			"a browser that enlarges", b.photo("scaled.png", 333, 777), image.Pt(333, 777),
			chromedp.EmulateViewport(853, 600, chromedp.EmulateScale(1.5)), b.mouse, 40, 0,
		},
	} {
		b.run(c.screen, chromedp.SetUploadFiles("#start input[type=file]", []string{c.file}))
		b.wait(fmt.Sprintf(`document.querySelectorAll("#start .chosen img").length === 1 &&
			document.querySelector("#start .chosen img").naturalWidth === %d && !document.querySelector("#mask .chosen img")`, c.size.X))
		b.paint(c.size)
		b.set("brush-size", c.brush)
		b.set("zoom", c.zoom)
		v := b.view(c.size)
		if got, want := v.width/v.height, float64(c.size.X)/float64(c.size.Y); math.Abs(got/want-1) > 0.01 {
			t.Errorf("%s: the photo is shown at %.0fx%.0f", c.name, v.width, v.height)
		}
		c.draw(v, 0.45, 0.4, 0.55, 0.55)
		want := image.NewGray(image.Rectangle{Max: c.size})
		stroke(want, v.pixel(0.45, 0.4), v.pixel(0.55, 0.55), c.brush, 255)
		b.same(c.name, b.painted(), want)
		b.run(chromedp.Click("#generate"))
		b.pictures(i + 1)
		o := b.model.last()
		b.same(c.name+", at the server", o.Mask, want)
		if o.Image.Bounds() != o.Mask.Bounds() || o.ImageStrength != 0 || o.Inpaint != (gomflux.InpaintOptions{}) {
			t.Errorf("%s: image %v, options %+v", c.name, o.Image.Bounds(), o.Inpaint)
		}
	}
}

// TestMaskTools uses the tools and buttons of the painter, its keys, and two fingers.
func TestMaskTools(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	size := image.Pt(80, 60)
	v := b.paintPhoto(size)
	want := image.NewGray(image.Rectangle{Max: size})
	line := func(x0, y0, x1, y1 float64, value uint8) {
		b.mouse(v, x0, y0, x1, y1)
		stroke(want, v.pixel(x0, y0), v.pixel(x1, y1), 3, value)
	}
	b.set("brush-size", 3)
	line(0.2, 0.2, 0.8, 0.2, 255)
	line(0.8, 0.2, 0.5, 0.8, 255)
	line(0.5, 0.8, 0.2, 0.2, 255)
	b.run(chromedp.Click("#tool-area"))
	b.mouse(v, 0.5, 0.4, 0.5, 0.4)
	b.mouse(v, 0.5, 0.4, 0.5, 0.4) // again: nothing is left to fill
	b.wait(`document.getElementById("painter-state").textContent.startsWith("This place is painted already. ")`)
	for y := range size.Y { // the triangle is convex
		row := want.Pix[y*want.Stride:][:size.X]
		if first := slices.Index(row, 255); first >= 0 {
			last := size.X - 1
			for row[last] == 0 {
				last--
			}
			for x := first; x <= last; x++ {
				row[x] = 255
			}
		}
	}
	b.run(chromedp.Click("#tool-erase"))
	line(0, 0.5, 1, 0.5, 0)
	b.same("painted, filled and erased", b.painted(), want)

	// the mask can be edited; the buttons; the form has the mask once the painter is closed, even if it is
	// read slowly
	b.text(`(() => {
		const read = FileReader.prototype.readAsDataURL;
		FileReader.prototype.readAsDataURL = function (file) { setTimeout(() => read.call(this, file), 300); };
	})()`)
	b.paint(size)
	b.run(chromedp.Click("#invert"))
	for i, p := range want.Pix {
		want.Pix[i] = 255 - p
	}
	b.run(chromedp.Click("#clear"), chromedp.Click("#undo"), chromedp.Click("#paint-all"), chromedp.Click("#undo"))
	b.run(chromedp.Click("#undo"), chromedp.Click("#redo"))
	b.same("inverted", b.painted(), want)
	b.paint(size)
	b.run(chromedp.Click("#clear"), chromedp.Click("#painter-done"))
	b.wait(`document.getElementById("painter-error").textContent.startsWith("Nothing is painted.")`)

	// what is not wanted is discarded after a question
	b.text(`window.confirm = () => false`)
	b.run(chromedp.KeyEvent(kb.Escape), chromedp.Click("#painter-cancel"))
	b.wait(`document.getElementById("painter").open`)
	b.text(`window.confirm = () => true`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.wait(`!document.getElementById("painter").open && document.activeElement.id === "paint"`)

	b.keyboard()
	b.pinch()
}

// keyboard paints a mask with keys alone, with a brush of one pixel: from the middle of the photo to the
// right, and down.
func (b *browser) keyboard() {
	b.run(chromedp.Click("#mask .chosen button"))
	b.wait(`document.activeElement.closest("#mask") && document.getElementById("paint").textContent === "Paint a mask"`)
	b.run(chromedp.Focus("#paint"), chromedp.KeyEvent(kb.Enter))
	b.wait(`document.activeElement.id === "painter-mask"`)
	for range 20 {
		b.run(chromedp.KeyEvent("["))
	}
	b.wait(`document.getElementById("brush-size").value === "1"`)
	shift := chromedp.KeyModifiers(kb.ModifierShift)
	b.run(chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(" "))
	b.run(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
	b.run(chromedp.KeyEvent(kb.ArrowRight, shift), chromedp.KeyEvent(kb.ArrowDown, shift))
	b.wait(`document.getElementById("painter-state").textContent.includes("of 80x60 pixels")`)
	b.run(chromedp.KeyEvent("z", chromedp.KeyModifiers(kb.ModifierCtrl)), chromedp.KeyEvent("y", chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.run(chromedp.KeyEvent("+"), chromedp.KeyEvent("e"))
	b.wait(`document.getElementById("tool-erase").checked && document.getElementById("zoom-value").value === "141 %"`)
	b.run(chromedp.KeyEvent(kb.Enter)) // the last pixel is erased
	want := image.NewGray(image.Rect(0, 0, 80, 60))
	for _, p := range []image.Point{{39, 30}, {41, 30}, {42, 30}} {
		want.SetGray(p.X, p.Y, color.Gray{Y: 255})
	}
	b.same("by the keyboard", b.painted(), want)
	b.wait(`document.activeElement.id === "paint"`)
}

// pinch moves and zooms a photo with two fingers, which does not paint.
func (b *browser) pinch() {
	b.run(phone())
	size := image.Pt(300, 300)
	b.run(chromedp.SetUploadFiles("#start input[type=file]", []string{b.photo("square.png", size.X, size.Y)}))
	b.wait(`document.querySelector("#start .chosen img").alt === "square.png"`)
	v := b.paint(size)
	x, y := v.screen(0.5, 0.5)
	b.touch(input.DispatchTouchEventTypeTouchStart, [2]float64{x - 50, y})
	b.touch(input.DispatchTouchEventTypeTouchMove, [2]float64{x - 40, y})
	b.touch(input.DispatchTouchEventTypeTouchStart, [2]float64{x - 40, y}, [2]float64{x + 40, y})
	b.touch(input.DispatchTouchEventTypeTouchMove, [2]float64{x - 80, y}, [2]float64{x + 80, y})
	b.wait(`document.getElementById("zoom-value").value === "200 %"`)
	b.touch(input.DispatchTouchEventTypeTouchEnd)
	b.wait(`document.getElementById("undo").ariaDisabled === "true"`)
	now := b.view(size)
	if left, top := now.screen(0.5, 0.5); math.Abs(left-x) > 2 || math.Abs(top-y) > 2 {
		b.Errorf("the middle of the photo moved from %v,%v to %v,%v", x, y, left, top)
	}
	b.finger(now, 0.5, 0.5, 0.5, 0.5)
	b.wait(`document.getElementById("undo").ariaDisabled === "false"`)
	want := image.NewGray(image.Rectangle{Max: size})
	stroke(want, now.pixel(0.5, 0.5), now.pixel(0.5, 0.5), evaluate[float64](b, `Number(document.getElementById("brush-size").value)`), 255)
	b.same("after two fingers", b.painted(), want)
}

// TestMaskFile inpaints with the file of a mask, with a border, and with the settings of an image.
func TestMaskFile(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "a hat"), chromedp.SendKeys("#steps", "1"), chromedp.Click("#generate"))
	b.pictures(1)
	b.run(chromedp.Click(".picture .inpaint"), chromedp.WaitVisible("#painter-mask"))
	b.wait(`document.getElementById("painter-state").textContent.includes("of 64x64 pixels")`)
	b.run(chromedp.Click("#painter-cancel"))
	mask := image.NewGray(image.Rect(0, 0, 64, 64))
	stroke(mask, image.Pt(10, 10), image.Pt(30, 20), 9, 255)
	var file bytes.Buffer
	if err := png.Encode(&file, mask); err != nil {
		t.Fatal(err)
	}
	b.drop("#mask", b.write("given.png", file.Bytes()))
	b.wait(`document.querySelector("#mask .chosen img")?.alt === "given.png" && document.getElementById("variation").hidden`)
	b.run(chromedp.Click("#mask summary"), chromedp.Click("#invert-mask"), chromedp.Click("#mask-crop"),
		chromedp.Click("#no-paste-back"), chromedp.SetValue("#mask-blur", "7"), chromedp.SetValue("#mask-padding", "9"),
		chromedp.SetValue("#expand-right", "5"))
	b.set("mask-strength", 0.25)
	b.run(chromedp.Click("#generate"))
	b.pictures(2)
	o := b.model.last()
	b.same("a file", o.Mask, mask)
	got := o.Inpaint
	if got.Feather == nil || *got.Feather != 7 || o.ImageStrength != 0.25 {
		t.Errorf("strength %v, options %+v", o.ImageStrength, got)
	}
	got.Feather = nil
	want := gomflux.InpaintOptions{Invert: true, Crop: true, Padding: 9, NoPasteBack: true, Expand: gomflux.Border{Right: 5}}
	if got != want {
		t.Errorf("options %+v, expected %+v", got, want)
	}
	// what the painter shows is what is generated: the inverted mask
	b.paint(image.Pt(64, 64))
	b.run(chromedp.Click("#invert"))
	b.same("inverted by the painter", b.painted(), mask)
	if evaluate[bool](b, `document.getElementById("invert-mask").checked`) {
		t.Error("the painted mask is inverted")
	}

	// errors about the mask are next to it
	b.drop("#mask", b.photo("colours.png", 64, 64))
	b.wait(`document.querySelector("#mask .chosen img")?.alt === "colours.png"`)
	b.run(chromedp.Click("#generate"))
	b.wait(`document.getElementById("mask-error").textContent.includes("the mask has colours") && document.getElementById("error").hidden`)

	// a border needs no mask, and a mask is that of one image
	b.drop("#start", b.photo("other.png", 32, 32))
	b.said("The mask was removed, since it was that of another image.")
	b.run(chromedp.Click("#mask-crop"), chromedp.Click("#generate"))
	b.pictures(3)
	if o := b.model.last(); o.Mask != nil || o.Inpaint.Expand != (gomflux.Border{Right: 5}) || o.Image.Bounds().Dx() != 32 {
		t.Errorf("image %v, mask %v, options %+v", o.Image.Bounds(), o.Mask, o.Inpaint)
	}

	b.scaleDown()
	b.fillMask()
	// Ctrl+Enter in the painter does not generate
	b.text(`document.getElementById("form").addEventListener("submit", () => { window.submitted = true; })`)
	b.paint(image.Pt(2048, 1024))
	b.run(chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.wait(`!document.getElementById("painter").open && document.activeElement.id === "paint" && !window.submitted`)
	b.run(chromedp.Click("#empty"))
	b.wait(`document.getElementById("mask").hidden && document.getElementById("expand-right").value === "0"`)
}

// scaleDown lets the page scale a photo down that is too large for the server. Its transparent part is a
// mask.
func (b *browser) scaleDown() {
	large := image.NewNRGBA(image.Rect(0, 0, 2400, 1200))
	for i := range large.Pix {
		large.Pix[i] = 255
	}
	for x := range 1200 {
		for y := range 600 {
			large.Pix[large.PixOffset(x, y)+3] = 0
		}
	}
	var file bytes.Buffer
	if err := png.Encode(&file, large); err != nil {
		b.Fatal(err)
	}
	b.drop("#start", b.write("large.png", file.Bytes()))
	b.wait(`document.getElementById("size-note").textContent.startsWith("The image has 2.9 megapixels.")`)
	b.run(chromedp.Click("#scale-down"))
	b.said("large.png is scaled to 2048x1024.")
	b.wait(`document.getElementById("too-large").hidden && document.getElementById("width").placeholder === "as image"`)
	b.paint(image.Pt(2048, 1024))
	mask := image.NewGray(image.Rect(0, 0, 2048, 1024))
	draw.Draw(mask, image.Rect(0, 0, 1024, 512), image.White, image.Point{}, draw.Src)
	b.same("the transparent part", b.painted(), mask)
	b.run(chromedp.Click("#generate"))
	b.pictures(4)
	b.same("the transparent part, at the server", b.model.last().Mask, mask)
}

// fillMask uses the settings of an image with the mask that is there.
func (b *browser) fillMask() {
	made := b.file("made.png", &picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: "a hat", Steps: 1, Height: 64, Width: 64, Seed: 5,
		Image: &picture.SourceImage{Path: "in.png"}, Mask: &picture.SourceImage{Path: "m.png"}, ImageStrength: 0.5,
		InvertMask: true, MaskBlur: new(0), MaskCrop: new(3), Expand: []int{1, 2, 3, 4}, NoPasteBack: true,
	})
	b.drop("header", made)
	b.said("Settings filled in. Add the images it was made from: in.png, m.png.")
	b.run(chromedp.Click("#generate"))
	b.pictures(5)
	got := b.model.last().Inpaint
	if got.Feather == nil || *got.Feather != 0 || b.model.last().ImageStrength != 0.5 {
		b.Errorf("strength %v, options %+v", b.model.last().ImageStrength, got)
	}
	got.Feather = nil
	border := gomflux.Border{Left: 1, Top: 2, Right: 3, Bottom: 4}
	want := gomflux.InpaintOptions{Invert: true, Crop: true, Padding: 3, NoPasteBack: true, Expand: border}
	if got != want {
		b.Errorf("options %+v, expected %+v", got, want)
	}
}
