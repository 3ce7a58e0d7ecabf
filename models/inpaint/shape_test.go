package inpaint

import (
	"image"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func newRNG() *rand.Rand { return rand.New(rand.NewPCG(11, 12)) }

func TestParseShape(t *testing.T) {
	size := image.Pt(12, 6)
	for _, c := range []struct{ text, want string }{
		{"rect:1,2,3,2", "............ ............ .###........ .###........ ............ ............"},
		{"rect:-2,-1,4,3", "##.......... ##.......... ............ ............ ............ ............"},
		{"rect:0,0,99,99", "############ ############ ############ ############ ############ ############"},
		{"ellipse:2,1,6,4", "............ ...####..... ..######.... ..######.... ...####..... ............"},
		{"ellipse:11,5,1,1", "............ ............ ............ ............ ............ ...........#"},
		{"ellipse:-3,-3,6,6", "###......... ###......... ##.......... ............ ............ ............"},
	} {
		mask, err := ParseShape(c.text, size)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var rows []string
		for y := range size.Y {
			line := ""
			for _, v := range row(mask.(*image.Gray), y) {
				line += map[uint8]string{0: ".", 255: "#"}[v]
			}
			rows = append(rows, line)
		}
		if got := strings.Join(rows, " "); got != c.want || !IsShape(c.text) {
			t.Errorf("%q:\n%s, want\n%s", c.text, got, c.want)
		}
	}
	mask, err := ParseShape("ellipse:3,5,300,200", image.Pt(400, 300))
	if err != nil {
		t.Fatal(err)
	}
	white := 0
	for _, v := range mask.(*image.Gray).Pix {
		white += int(v) / 255
	}
	if area := math.Pi * 150 * 100; math.Abs(float64(white)/area-1) > 0.002 {
		t.Errorf("an ellipse of %d pixels, want %.0f", white, area)
	}
	for text, want := range map[string]string{
		"rect:12,0,5,5": "no part of it is inside the image of 12x6 pixels", "rect:-5,0,5,5": "no part of it",
		"ellipse:11,5,30,30": "no part of it", // only a corner of its bounds
		"rect:1,1,0,5":       "of at least 1 pixel", "ellipse:1,1,5,-2": "of at least 1 pixel",
		"rect:1,1,5": "expected rect:", "rect": "expected rect:", "circle:1,2,3,4": "expected rect:", "": "expected rect:",
		"rect:1,1,5,5,5": "expected rect:", "rect:1,1,5,9999999999": "expected rect:", "rect:\n": "expected rect:",
	} {
		_, err := ParseShape(text, size)
		checkError(t, text, err, want)
	}
	for _, text := range []string{"mask.png", "C:mask.png", "rect", "circle:1,2,3,4", "rect.png"} {
		if IsShape(text) {
			t.Errorf("%q is a shape", text)
		}
	}
}

func FuzzParseShape(f *testing.F) {
	for _, text := range []string{"rect:1,2,3,4", "ellipse:-5,0,2147483647,9", "rect:", "ellipse:1,1,1,1"} {
		f.Add(text, 20, 10)
	}
	f.Fuzz(func(t *testing.T, text string, width, height int) {
		size := image.Pt(1+(width&63), 1+(height&63))
		mask, err := ParseShape(text, size)
		if err != nil {
			if message := err.Error(); strings.ContainsAny(message, "\n\r") || len(message) > 1200 {
				t.Errorf("error %q", message)
			}
			return
		}
		if mask.Bounds() != (image.Rectangle{Max: size}) || bounds(mask.(*image.Gray)).Empty() || !IsShape(text) {
			t.Errorf("%q: a mask of %v", text, mask.Bounds())
		}
		for _, v := range mask.(*image.Gray).Pix {
			if v != 0 && v != 255 {
				t.Fatalf("%q: %d", text, v)
			}
		}
	})
}

func FuzzParseCanvas(f *testing.F) {
	f.Add("1536x1024@3,4", 100, 200)
	f.Add("1536x1024", 1536, 1024)
	f.Fuzz(func(t *testing.T, text string, width, height int) {
		size := image.Pt(1+(width&0xffff), 1+(height&0xffff))
		b, err := ParseCanvas(text, size)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q", err)
			}
			return
		}
		if again, err := ParseBorder(b.String()); err != nil || again != b {
			t.Errorf("%q: %v, read again %v, %v", text, b, again, err)
		}
		if b.Check(size) == nil && !size.In(image.Rectangle{Max: b.Size(size).Add(image.Pt(1, 1))}) {
			t.Errorf("%q: a canvas of %v for an image of %v", text, b.Size(size), size)
		}
	})
}
