// Package termpic shows images in terminals with kitty's graphics protocol,
// iTerm2's inline images, or sixels.
package termpic

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// A Protocol is a protocol for images in terminals.
type Protocol string

const (
	Auto   Protocol = "auto"   // whatever the terminal understands
	Kitty  Protocol = "kitty"  // https://sw.kovidgoyal.net/kitty/graphics-protocol/
	ITerm2 Protocol = "iterm2" // https://iterm2.com/documentation-images.html
	Sixel  Protocol = "sixel"  // DEC STD 070, chapter 9
	None   Protocol = "none"
)

// Protocols are the names that ParseProtocol accepts.
var Protocols = []Protocol{Auto, Kitty, ITerm2, Sixel, None}

// ParseProtocol parses the name of a protocol.
func ParseProtocol(name string) (Protocol, error) {
	names := make([]string, len(Protocols))
	for i, p := range Protocols {
		if name == string(p) {
			return p, nil
		}
		names[i] = string(p)
	}
	return None, fmt.Errorf("%q is not a terminal image protocol (%s)", name, strings.Join(names, ", "))
}

// A Terminal shows images. A nil Terminal cannot.
type Terminal struct {
	out      *os.File
	protocol Protocol
	answers  answers         // empty without queries
	size     func() termSize // in cells and, where the system knows, in pixels
	nextID   func() uint32   // of kitty's images
}

// Open determines how to show images on w. It returns nil if w is not a terminal
// or the terminal supports no protocol.
//
// With Auto, and to learn the size in pixels if the system does not know it, Open
// queries the terminal, for at most a second or until ctx is done. It does not
// query in the background or if there is typed input; it then relies on the
// environment. Nothing else may read from the terminal during the query.
func Open(ctx context.Context, w io.Writer, want Protocol) *Terminal {
	out, ok := w.(*os.File)
	if !ok || want == None || want == "" || !term.IsTerminal(int(out.Fd())) {
		return nil
	}
	t := &Terminal{out: out, protocol: want, size: func() termSize { return sizeOf(out) }, nextID: randomID()}
	told, sure := fromEnvironment(os.Getenv)
	if sure && want == Auto {
		t.protocol = told
	}
	if t.protocol == Auto || t.protocol == Sixel || t.protocol == Kitty && t.size().cell() == (image.Point{}) {
		t.answers = ask(ctx, out, time.Second)
	}
	if t.protocol == Auto {
		t.protocol = choose(t.answers, told)
		if t.protocol == Sixel && t.cell() == (image.Point{}) {
			return nil // the number of lines of an image would be a guess
		}
	}
	if t.protocol == None {
		return nil
	}
	return t
}

// Protocol returns the protocol that is used, None for a nil Terminal.
func (t *Terminal) Protocol() Protocol {
	if t == nil {
		return None
	}
	return t.protocol
}

// choose prefers the protocol that the terminal implements best. iTerm2 and WezTerm
// know several, of which iTerm2's has the fewest gaps. Sixels have only 256
// colours.
func choose(a answers, told Protocol) Protocol {
	switch {
	case !a.answered():
		return told
	case strings.HasPrefix(a.name, "iTerm2 "), strings.HasPrefix(a.name, "WezTerm "):
		return ITerm2
	case a.kitty:
		return Kitty
	case a.sixel:
		return Sixel
	}
	return None
}

// fromEnvironment determines the protocol by environment variables. sure is true
// only for TERM, which every terminal sets; a terminal that was started from
// another inherits the other variables. Inside a multiplexer,
// which passes on only sequences that it knows, it returns None.
func fromEnvironment(getenv func(string) string) (p Protocol, sure bool) {
	name, program := getenv("TERM"), getenv("TERM_PROGRAM")
	switch {
	case name == "" || name == "dumb" || name == "linux" || program == "Apple_Terminal":
		return None, true
	case getenv("TMUX") != "" || getenv("STY") != "" || getenv("ZELLIJ") != "" || strings.HasPrefix(name, "screen") ||
		strings.HasPrefix(name, "tmux"):
		return None, false
	case name == "xterm-kitty" || name == "xterm-ghostty":
		return Kitty, true
	case program == "iTerm.app" || getenv("LC_TERMINAL") == "iTerm2" || program == "WezTerm" || getenv("WEZTERM_PANE") != "":
		return ITerm2, false
	case program == "ghostty" || getenv("GHOSTTY_RESOURCES_DIR") != "" || getenv("KITTY_WINDOW_ID") != "":
		return Kitty, false
	case name == "foot" || strings.HasPrefix(name, "foot-") || strings.HasPrefix(name, "mlterm") || strings.HasPrefix(name, "contour"):
		return Sixel, false
	}
	// Konsole, Windows Terminal, VS Code and xterm depend on versions and
	// settings, so only a query helps
	return None, false
}

// A termSize is the size of a terminal according to the system. Pixels may be 0.
type termSize struct{ cols, rows, width, height int }

// cell is the size of a character in pixels, zero if it is not known.
func (s termSize) cell() image.Point {
	if s.cols <= 0 || s.rows <= 0 {
		return image.Point{}
	}
	return plausible(image.Pt(s.width/s.cols, s.height/s.rows))
}

// plausible returns p if it can be the size of a character, otherwise zero.
func plausible(p image.Point) image.Point {
	if p.X < 2 || p.Y < 6 || p.X > 500 || p.Y > 500 {
		return image.Point{}
	}
	return p
}

// cell is the size of a character in pixels, zero if it is not known.
func (t *Terminal) cell() image.Point {
	size := t.size()
	answered := termSize{size.cols, size.rows, t.answers.area.X, t.answers.area.Y}
	return cmp.Or(size.cell(), plausible(t.answers.cell), answered.cell())
}
