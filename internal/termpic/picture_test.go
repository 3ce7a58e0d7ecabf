package termpic

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/mattn/go-sixel"
)

// fake is a terminal with cells of 10x20 pixels, which nobody looks at.
func fake(p Protocol, cols, rows int) *Terminal {
	id := uint32(0)
	return &Terminal{
		protocol: p,
		size:     func() termSize { return termSize{cols, rows, cols * 10, rows * 20} },
		nextID:   func() uint32 { id++; return id },
	}
}

// quarters is red and green above blue and white.
func quarters(width, height int) *image.RGBA {
	colors := [2][2]color.RGBA{{{255, 0, 0, 255}, {0, 255, 0, 255}}, {{0, 0, 255, 255}, {255, 255, 255, 255}}}
	m := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			m.SetRGBA(x, y, colors[2*y/height][2*x/width])
		}
	}
	return m
}

func TestFitInto(t *testing.T) {
	cell := image.Pt(10, 20)
	tests := []struct {
		name             string
		picture          image.Point
		cols, rows, most int
		want             extent
	}{
		{"as it is", image.Pt(100, 100), 80, 24, 100, extent{image.Pt(100, 100), 10, 5}},
		{"part of a cell", image.Pt(101, 101), 80, 24, 101, extent{image.Pt(101, 101), 11, 6}},
		{"too high", image.Pt(1000, 1000), 80, 20, 1000, extent{image.Pt(400, 400), 40, 20}},
		{"too wide", image.Pt(2000, 1000), 40, 24, 2000, extent{image.Pt(400, 200), 40, 10}},
		{"enlarged", image.Pt(32, 64), 80, 16, 1000, extent{image.Pt(160, 320), 16, 16}},
		{"too many pixels", image.Pt(4000, 4000), 400, 200, 1000, extent{image.Pt(1000, 1000), 100, 50}},
		{"very flat", image.Pt(10000, 1), 80, 24, 1000, extent{image.Pt(800, 1), 80, 1}},
	}
	for _, test := range tests {
		if got := fitInto(test.picture, cell, test.cols, test.rows, test.most); got != test.want {
			t.Errorf("%s: %+v, expected %+v", test.name, got, test.want)
		}
	}
}

func TestFitSixel(t *testing.T) {
	tests := []struct {
		picture, cell image.Point
		want          extent
	}{
		{image.Pt(100, 100), image.Pt(10, 20), extent{image.Pt(96, 96), 10, 5}}, // 102 would need a sixth line
		{image.Pt(100, 100), image.Pt(10, 19), extent{image.Pt(100, 100), 10, 6}},
		{image.Pt(120, 120), image.Pt(10, 20), extent{image.Pt(120, 120), 12, 6}},
		{image.Pt(500, 5), image.Pt(10, 20), extent{image.Pt(500, 5), 50, 1}},
	}
	for _, test := range tests {
		if got := fake(Sixel, 80, 24).fit(test.picture, test.cell, 80, 24, test.picture.X); got != test.want {
			t.Errorf("%v in cells of %v: %+v, expected %+v", test.picture, test.cell, got, test.want)
		}
	}
}

// The bytes of pictures small enough to read. What zlib makes of pixels may
// change with Go, so the PNG files are decoded instead.
func TestEncode(t *testing.T) {
	picture := quarters(4, 6)
	same := extent{picture.Rect.Max, 1, 1}
	tests := []struct {
		protocol Protocol
		id       uint32
		want     string // DATA for the PNG file in base64, LENGTH for its size
	}{
		{Kitty, 0, "\x1b_Ga=T,f=100,q=2,C=1,m=0;DATA\x1b\\"},
		{Kitty, 7, "\x1b_Ga=T,f=100,q=2,C=1,i=7,p=1,m=0;DATA\x1b\\"},
		{ITerm2, 7, "\x1b]1337;File=inline=1;size=LENGTH;width=1;height=1;preserveAspectRatio=1:DATA\a"},
		{Sixel, 7, "\x1bP0;0;8q\"1;1;4;6#0;2;0;0;100#1;2;100;0;0#2;2;0;100;0#3;2;100;100;100" +
			"#0ww$#1FF$#2??FF$#3??ww\x1b\\"},
	}
	for _, test := range tests {
		got, err := fake(test.protocol, 80, 24).encode(picture, same, test.id)
		if err != nil {
			t.Errorf("%s: %v", test.protocol, err)
			continue
		}
		back, data := decode(t, got)
		samePixels(t, back, picture, 0)
		want := strings.Replace(test.want, "LENGTH", strconv.Itoa(base64.StdEncoding.DecodedLen(len(data))-strings.Count(data, "=")), 1)
		if data != "" {
			got = strings.Replace(got, data, "DATA", 1)
		}
		if got != want {
			t.Errorf("%s:\n%q, expected\n%q", test.protocol, got, want)
		}
	}
}

// decode returns the picture that a sequence shows, and the PNG file in it as it
// is there, if one is.
func decode(t *testing.T, sequence string) (image.Image, string) {
	t.Helper()
	var data string
	switch {
	case strings.HasPrefix(sequence, "\x1bP"):
		var m image.Image
		if err := sixel.NewDecoder(strings.NewReader(sequence)).Decode(&m); err != nil {
			t.Fatal(err)
		}
		return m, ""
	case strings.HasPrefix(sequence, "\x1b]"):
		_, data, _ = strings.Cut(strings.TrimSuffix(sequence, "\a"), ":")
	default:
		for chunk := range strings.SplitSeq(strings.TrimSuffix(sequence, "\x1b\\"), "\x1b\\") {
			_, payload, ok := strings.Cut(chunk, ";")
			if !ok || len(payload) > kittyChunk {
				t.Fatalf("a chunk of %d bytes", len(payload))
			}
			data += payload
		}
	}
	file, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	m, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	return m, data
}

func samePixels(t *testing.T, got image.Image, want *image.RGBA, tolerance int) {
	t.Helper()
	if got.Bounds() != want.Bounds() {
		t.Fatalf("bounds %v, expected %v", got.Bounds(), want.Bounds())
	}
	for y := range want.Rect.Max.Y {
		for x := range want.Rect.Max.X {
			g, w := color.RGBAModel.Convert(got.At(x, y)).(color.RGBA), want.RGBAAt(x, y)
			if max(abs(g.R, w.R), abs(g.G, w.G), abs(g.B, w.B), abs(g.A, w.A)) > tolerance {
				t.Fatalf("pixel %d,%d is %v, expected %v", x, y, g, w)
			}
		}
	}
}

func abs(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }

// Noise does not compress, so it takes kitty many sequences.
func TestEncodeChunks(t *testing.T) {
	picture := image.NewRGBA(image.Rect(0, 0, 200, 100))
	state := uint32(1)
	for i := range picture.Pix {
		state = state*1664525 + 1013904223
		picture.Pix[i] = byte(state>>24) | byte(i%4/3*255)
	}
	got, err := fake(Kitty, 80, 24).encode(picture, extent{picture.Rect.Max, 20, 5}, 3)
	if err != nil {
		t.Fatal(err)
	}
	back, _ := decode(t, got)
	samePixels(t, back, picture, 0)
	keys := regexp.MustCompile(`\x1b_G([^;]*);`).FindAllStringSubmatch(got, -1)
	for i, k := range keys {
		want := "q=2,m=1"
		if i == 0 {
			want = "a=T,f=100,q=2,C=1,i=3,p=1,m=1"
		} else if i == len(keys)-1 {
			want = "q=2,m=0"
		}
		if k[1] != want {
			t.Errorf("keys %s of chunk %d, expected %s", k[1], i, want)
		}
	}
	if len(keys) < 15 {
		t.Errorf("%d chunks of %d bytes", len(keys), len(got))
	}
}

func TestEncodeSixelColors(t *testing.T) {
	picture := image.NewRGBA(image.Rect(0, 0, 256, 64))
	for y := range 64 {
		for x := range 256 {
			picture.SetRGBA(x, y, color.RGBA{uint8(x), uint8(255 - x), uint8(y * 4), 255})
		}
	}
	for _, test := range []struct{ registers, most, tolerance int }{{0, 256, 40}, {1024, 256, 40}, {16, 16, 110}} {
		terminal := fake(Sixel, 80, 24)
		terminal.answers.colors = test.registers
		got, err := terminal.encode(picture, extent{picture.Rect.Max, 26, 4}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(regexp.MustCompile(`#\d+;2;`).FindAllString(got, -1)); n > test.most || n < test.most/2 {
			t.Errorf("%d colours for %d registers", n, test.registers)
		}
		back, _ := decode(t, got)
		samePixels(t, back, picture, test.tolerance)
	}
}

// The pixels of a cell are not known: the terminal is told the cells.
func TestEncodeKittyUnknownCell(t *testing.T) {
	terminal := fake(Kitty, 80, 24)
	terminal.size = func() termSize { return termSize{cols: 80, rows: 24} }
	got, err := terminal.NewPreview().Draw(quarters(64, 64))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got, "a=T,f=100,q=2,C=1,i=1,p=1,c=32,r=16,m=") {
		t.Errorf("%.200q", got)
	}
}

func TestPreview(t *testing.T) {
	for _, protocol := range []Protocol{Kitty, ITerm2, Sixel} {
		for _, before := range []int{0, 12, 60} {
			t.Run(fmt.Sprintf("%s after %d lines", protocol, before), func(t *testing.T) {
				s := newScreen(80, 24)
				terminal := fake(protocol, 80, 24)
				terminal.size = func() termSize { return termSize{s.cols, s.rows, s.cols * 10, s.rows * 20} }
				for i := range before {
					s.write(t, fmt.Sprintf("line %d\n", i))
				}
				s.write(t, "progress 0\n")
				p := terminal.NewPreview()
				draw := func(m image.Image) string {
					text, err := p.Draw(m)
					if err != nil {
						t.Fatal(err)
					}
					return text
				}
				// as the line of progress is rewritten
				step := func(picture string, line int) {
					s.write(t, "\x1b[1A\x1b[J"+picture+fmt.Sprintf("progress %d\n", line))
				}
				check := func(line, rows int) {
					t.Helper()
					s.check(t, before, fmt.Sprintf("progress %d", line), rows)
				}
				for i := 1; i < 4; i++ {
					step(draw(quarters(32, 32)), i)
					check(i, 16)
					step("", 10+i)
					check(10+i, 16)
				}
				step(draw(quarters(64, 16)), 20) // of another height: as wide as the terminal
				check(20, 10)
				s.resize(80, 12)
				step("", 21)
				step(draw(quarters(32, 32)), 22)
				check(22, 9)
				s.resize(80, 5)
				step(draw(quarters(32, 32)), 23)
				check(23, 0)
				s.resize(80, 24)
				step(draw(quarters(32, 32)), 24)
				check(24, 16)
				step(p.Clear(), 25)
				check(25, 0)
				if again := p.Clear(); again != "" {
					t.Errorf("%q clears what is clear", again)
				}
			})
		}
	}
}

func TestPreviewPixels(t *testing.T) {
	for _, protocol := range []Protocol{Kitty, ITerm2} {
		s := newScreen(80, 24)
		text, err := fake(protocol, 80, 24).NewPreview().Draw(quarters(160, 320)) // which is enlarged to nothing
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, text)
		samePixels(t, s.pictures[0].picture, quarters(160, 320), 0)
	}
}

// A screen is enough of a terminal to see where pictures come to be. Rows are
// counted from the first that there ever was.
type screen struct {
	cols, rows int
	top        int // the first row that is visible
	x, y       int
	savedX     int
	savedY     int // in the window
	lines      map[int]string
	pictures   []placed
}

type placed struct {
	picture image.Image
	y, rows int
	id      string
}

func newScreen(cols, rows int) *screen {
	return &screen{cols: cols, rows: rows, lines: map[int]string{}}
}

// resize keeps the cursor visible.
func (s *screen) resize(cols, rows int) {
	s.cols, s.rows = cols, rows
	s.top = max(s.top, s.y-rows+1)
}

func (s *screen) down() {
	s.y++
	s.top = max(s.top, s.y-s.rows+1)
}

var sequence = regexp.MustCompile(`(?s)^(?:\x1b\[(\d*)([A-Z])|\x1b([78])|((?:\x1b_G[^\x1b]*;[^\x1b]*\x1b\\)+)|` +
	`(\x1b_G[^;\x1b]*\x1b\\)|(\x1b\][^\a]*\a)|(\x1bP[^\x1b]*\x1b\\)|\r|\n|[ -~])`)

func (s *screen) write(t *testing.T, text string) {
	t.Helper()
	for text != "" {
		m := sequence.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("unexpected %.40q", text)
		}
		text = text[len(m[0]):]
		n, _ := strconv.Atoi(m[1])
		switch {
		case m[2] == "A":
			s.y = max(s.top, s.y-max(n, 1))
		case m[2] == "B":
			s.y = min(s.top+s.rows-1, s.y+max(n, 1))
		case m[2] == "J" && n == 0 && s.x == 0:
			for y := range s.lines {
				if y >= s.y {
					delete(s.lines, y)
				}
			}
			s.remove(func(p placed) bool { return p.id == "" && p.y+p.rows > s.y })
		case m[3] == "7":
			s.savedX, s.savedY = s.x, s.y-s.top
		case m[3] == "8":
			s.x, s.y = s.savedX, s.savedY+s.top
		case m[4] != "": // kitty's: the cursor stays, and new ones are above old ones
			picture, _ := decode(t, m[4])
			id := regexp.MustCompile(`i=(\d+)`).FindStringSubmatch(m[4])
			s.pictures = append(s.pictures, placed{picture, s.y, (picture.Bounds().Dy() + 19) / 20, id[1]})
		case strings.HasPrefix(m[5], "\x1b_Ga=d,d=I,i="):
			id := regexp.MustCompile(`i=(\d+)`).FindStringSubmatch(m[5])
			s.remove(func(p placed) bool { return p.id == id[1] })
		case m[6]+m[7] != "": // the others: what is below is gone, and the cursor is behind
			picture, _ := decode(t, m[0])
			height := picture.Bounds().Dy()
			if m[7] != "" {
				height = (height + 5) / 6 * 6
			}
			rows := (height + 19) / 20
			y := s.y
			for range rows {
				s.down()
			}
			s.remove(func(p placed) bool { return p.y == y && p.rows == rows })
			s.pictures = append(s.pictures, placed{picture, y, rows, ""})
			s.x += 10
		case m[0] == "\r":
			s.x = 0
		case m[0] == "\n": // the terminal's driver adds the return
			s.x = 0
			s.down()
		case len(m[0]) == 1:
			if s.x != len(s.lines[s.y]) {
				t.Fatalf("%q is written at column %d of %q", m[0], s.x, s.lines[s.y])
			}
			s.lines[s.y] += m[0]
			s.x++
		default:
			t.Fatalf("unexpected %.40q", m[0])
		}
	}
}

func (s *screen) remove(which func(placed) bool) {
	var kept []placed
	for _, p := range s.pictures {
		if !which(p) {
			kept = append(kept, p)
		}
	}
	s.pictures = kept
}

// check wants the lines before, a picture of so many rows, the last line and
// the cursor below.
func (s *screen) check(t *testing.T, before int, last string, rows int) {
	t.Helper()
	for i := range before {
		if want := fmt.Sprintf("line %d", i); s.lines[i] != want {
			t.Errorf("row %d is %q, expected %q", i, s.lines[i], want)
		}
	}
	if s.lines[s.y-1] != last || s.x != 0 || len(s.lines[s.y]) != 0 {
		t.Errorf("%q and %q at the cursor, expected %q", s.lines[s.y-1], s.lines[s.y], last)
	}
	if rows == 0 {
		if len(s.pictures) != 0 {
			t.Errorf("pictures %v", s.pictures)
		}
		return
	}
	if len(s.pictures) != 1 || s.pictures[0].rows != rows || s.pictures[0].y != s.y-1-rows || s.pictures[0].y < s.top {
		t.Errorf("%d pictures, expected one in rows %d to %d", len(s.pictures), s.y-1-rows, s.y-2)
		for _, p := range s.pictures {
			t.Logf("%d rows from %d", p.rows, p.y)
		}
	}
	for y := s.y - 1 - rows; y < s.y-1; y++ {
		if s.lines[y] != "" {
			t.Errorf("%q behind the picture", s.lines[y])
		}
	}
}

// White stays white, and the mean of what is between is kept, however few
// colours there are.
func TestEncodeSixelMean(t *testing.T) {
	picture := image.NewRGBA(image.Rect(0, 0, 128, 60))
	state := uint32(1)
	for y := range 60 {
		for x := range 128 {
			c := color.RGBA{255, 255, 255, 255}
			if y >= 30 {
				state = state*1664525 + 1013904223
				c = color.RGBA{uint8(2 * x), uint8(255 - x), uint8(state >> 26), 255}
			} else if x%32 == 0 {
				c.G, c.B = 251, 249
			}
			picture.SetRGBA(x, y, c)
		}
	}
	var b bytes.Buffer
	if err := encodeSixel(&b, picture, 256); err != nil {
		t.Fatal(err)
	}
	back, _ := decode(t, b.String())
	for x := range 128 {
		if c := color.RGBAModel.Convert(back.At(x, 3)); c != (color.RGBA{255, 255, 255, 255}) {
			t.Fatalf("white is %v at %d", c, x)
		}
	}
	for _, x := range []int{0, 32, 64, 96} {
		area := image.Rect(x, 30, x+32, 60)
		got, want := mean(back, area), mean(picture, area)
		for i := range got {
			if d := got[i] - want[i]; d < -3 || d > 3 {
				t.Errorf("the mean colour of %v is %.1f, expected %.1f", area, got, want)
				break
			}
		}
	}
}

func mean(m image.Image, area image.Rectangle) (sum [3]float64) {
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			r, g, b, _ := m.At(x, y).RGBA()
			for i, v := range []uint32{r, g, b} {
				sum[i] += float64(v>>8) / float64(area.Dx()*area.Dy())
			}
		}
	}
	return sum
}
