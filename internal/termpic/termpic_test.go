package termpic

import (
	"bytes"
	"context"
	"image"
	"strings"
	"testing"
	"time"
)

func TestParseProtocol(t *testing.T) {
	for _, p := range Protocols {
		if got, err := ParseProtocol(string(p)); got != p || err != nil {
			t.Errorf("ParseProtocol(%q) = %q, %v", p, got, err)
		}
	}
	if _, err := ParseProtocol("Kitty "); err == nil ||
		!strings.Contains(err.Error(), `"Kitty " is not a terminal image protocol (auto, kitty, iterm2, sixel, none)`) {
		t.Errorf("error %v", err)
	}
}

func TestFromEnvironment(t *testing.T) {
	tests := []struct {
		env  string
		want Protocol
		sure bool
	}{
		{"", None, true},
		{"TERM=dumb KITTY_WINDOW_ID=1", None, true},
		{"TERM=linux", None, true},
		{"TERM=xterm-256color TERM_PROGRAM=Apple_Terminal", None, true},
		{"TERM=xterm-kitty", Kitty, true},
		{"TERM=xterm-ghostty", Kitty, true},
		{"TERM=xterm-256color KITTY_WINDOW_ID=1", Kitty, false},
		{"TERM=xterm-256color TERM_PROGRAM=ghostty", Kitty, false},
		{"TERM=xterm-256color GHOSTTY_RESOURCES_DIR=/usr/share/ghostty", Kitty, false},
		{"TERM=xterm-256color TERM_PROGRAM=iTerm.app ITERM_SESSION_ID=w0t0p0", ITerm2, false},
		{"TERM=xterm-256color LC_TERMINAL=iTerm2", ITerm2, false}, // through ssh
		{"TERM=xterm-256color TERM_PROGRAM=WezTerm", ITerm2, false},
		{"TERM=xterm-256color WEZTERM_PANE=0", ITerm2, false},
		{"TERM=foot", Sixel, false},
		{"TERM=foot-extra", Sixel, false},
		{"TERM=mlterm-256color", Sixel, false},
		{"TERM=contour", Sixel, false},
		{"TERM=xterm", None, false},
		{"TERM=xterm-256color KONSOLE_VERSION=221203", None, false},
		{"TERM=xterm-256color WT_SESSION=0", None, false},
		{"TERM=xterm-256color TERM_PROGRAM=vscode", None, false},
		{"TERM=tmux-256color TERM_PROGRAM=tmux TMUX=/tmp/t,1,0 KITTY_WINDOW_ID=1", None, false},
		{"TERM=screen.xterm-256color STY=1.tty LC_TERMINAL=iTerm2", None, false},
		{"TERM=screen KITTY_WINDOW_ID=1", None, false},
		{"TERM=xterm-kitty ZELLIJ=0", None, false},
	}
	for _, test := range tests {
		getenv := func(name string) string {
			for entry := range strings.FieldsSeq(test.env) {
				if k, v, _ := strings.Cut(entry, "="); k == name {
					return v
				}
			}
			return ""
		}
		if got, sure := fromEnvironment(getenv); got != test.want || sure != test.sure {
			t.Errorf("%q: %s, %t, expected %s, %t", test.env, got, sure, test.want, test.sure)
		}
	}
}

// What terminals answer, as seen from them.
const (
	kittyAnswer   = "\x1b_Gi=31;OK\x1b\\\x1bP>|kitty(0.26.5)\x1b\\\x1b[4;400;640t\x1b[6;19;10t\x1b[?62;c"
	xtermAnswer   = "\x1bP>|XTerm(379)\x1b\\\x1b[?1;0;1024S\x1b[?63;1;2;3;4;6;9;15;22c"
	konsoleAnswer = "\x1b_Gi=31;OK\x1b\\\x1bP>|Konsole 22.12.3\x1b\\\x1b[?1;0;256S\x1b[4;476;880t\x1b[6;17;8t\x1b[?62;1;4c"
	tmuxAnswer    = "\x1b[?1;2c"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, data string
		want       answers
		done       bool
		choice     Protocol
	}{
		{"kitty", kittyAnswer, answers{level: 62, kitty: true, name: "kitty(0.26.5)", area: image.Pt(640, 400), cell: image.Pt(10, 19)},
			true, Kitty},
		{"xterm", xtermAnswer, answers{level: 63, sixel: true, name: "XTerm(379)", colors: 1024}, true, Sixel},
		{"konsole", konsoleAnswer, answers{level: 62, sixel: true, kitty: true, name: "Konsole 22.12.3", colors: 256,
			area: image.Pt(880, 476), cell: image.Pt(8, 17)}, true, Kitty},
		{"tmux", tmuxAnswer, answers{level: 1}, true, None},
		{"tmux with sixels", "\x1b[?1;2;4c", answers{level: 1, sixel: true}, true, Sixel},
		{"iTerm2", "\x1b_Gi=31;OK\x1b\\\x1bP>|iTerm2 3.5.0\x1b\\\x1b[?64;1;2;4;6c",
			answers{level: 64, sixel: true, kitty: true, name: "iTerm2 3.5.0"}, true, ITerm2},
		{"WezTerm", "\x1bP>|WezTerm 20240203\x1b\\\x1b[?65;4;6;18;22c", answers{level: 65, sixel: true, name: "WezTerm 20240203"},
			true, ITerm2},
		{"kitty's graphics refused", "\x1b_Gi=31;EINVAL:no\x1b\\\x1b[?62;22c", answers{level: 62}, true, None},
		{"keys before", "ls\r\x1b[A\x1bOP\x1b[?62;4c", answers{level: 62, sixel: true}, true, Sixel},
		{"4 of another attribute", "\x1b[?62;14;44c", answers{level: 62}, true, None},
		{"half", "\x1b[?62;4", answers{}, false, Kitty},
		{"half a string", "\x1bP>|foot(1.13", answers{}, false, Kitty},
		{"secondary attributes", "\x1b[>1;379;0c", answers{}, false, Kitty},
		{"echoed", "\x1b[c\x1b[16t", answers{}, false, Kitty},
		{"huge numbers", "\x1b[6;99999999999999999999;1t\x1b[?99999999999999999999c", answers{}, false, Kitty},
		{"nothing", "", answers{}, false, Kitty},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got answers
			if done := got.parse([]byte(test.data)); got != test.want || done != test.done {
				t.Errorf("%+v, done %t, expected %+v, %t", got, done, test.want, test.done)
			}
			if choice := choose(got, Kitty); choice != test.choice {
				t.Errorf("chooses %s, expected %s", choice, test.choice)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{kittyAnswer, xtermAnswer, konsoleAnswer, tmuxAnswer, "\x1b[", "\x1b\x1b_\x1bP\x1b\\", "\x1b[?;c"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		var a answers
		done := a.parse(data)
		if done != a.answered() {
			t.Errorf("done %t with %+v", done, a)
		}
		if !bytes.Equal(before, data) {
			t.Error("changes what it parses")
		}
		terminal := Terminal{answers: a, size: func() termSize { return termSize{cols: 80, rows: 24} }}
		if c := terminal.cell(); c != plausible(c) {
			t.Errorf("a cell of %v", c)
		}
	})
}

func TestOpenNoTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm-kitty")
	for _, p := range Protocols {
		if got := Open(context.Background(), &bytes.Buffer{}, p); got != nil {
			t.Errorf("a buffer shows pictures with %s", p)
		}
	}
	var none *Terminal
	if none.Protocol() != None || none.Show(image.NewRGBA(image.Rect(0, 0, 9, 9))) != nil {
		t.Error("no terminal is not quiet")
	}
	p := none.NewPreview()
	if text, err := p.Draw(image.NewRGBA(image.Rect(0, 0, 9, 9))); text != "" || err != nil || p.Clear() != "" {
		t.Errorf("%q, %v", text, err)
	}
}

const soon = 10 * time.Second // of a test that would wait forever
