package termpic

import (
	"context"
	"fmt"
	"image"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A round is what has to be asked, and what is answered to that.
type round struct{ question, answer string }

// play is a terminal: it answers in rounds, until the other side hangs up.
func play(terminal io.ReadWriter, rounds []round) (said string) {
	buf, next := make([]byte, 4096), 0
	for {
		n, err := terminal.Read(buf)
		said += string(buf[:n])
		if err != nil {
			return said
		}
		for len(rounds) > 0 && strings.Contains(said[next:], rounds[0].question) {
			next = len(said)
			io.WriteString(terminal, rounds[0].answer)
			rounds = rounds[1:]
		}
	}
}

// openPTY returns the terminal's and the program's side of a terminal.
func openPTY(t *testing.T) (terminal, line *os.File) {
	t.Helper()
	terminal, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		line.Close()
		terminal.Close()
	})
	return terminal, line
}

func mode(t *testing.T, line *os.File) term.State {
	t.Helper()
	state, err := term.GetState(int(line.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return *state
}

func TestAskTerminal(t *testing.T) {
	const first, all = askAttributes, askSizes + askAttributes
	tests := []struct {
		name      string
		rounds    []round
		want      answers
		interrupt unix.Signal
		wait      bool // it takes until the time is over
	}{
		{"kitty", []round{{first, "\x1b[?62;c"}, {all, kittyAnswer}}, answers{level: 62, kitty: true, name: "kitty(0.26.5)",
			area: image.Pt(640, 400), cell: image.Pt(10, 19)}, 0, false},
		{"one that is asked for nothing else", []round{{first, tmuxAnswer}, {askKitty, kittyAnswer}}, answers{level: 1}, 0, false},
		{"silent", nil, answers{}, 0, true},
		{"rubbish", []round{{first, "\x1b[\x00\xff\x1bP\x1b_c?c\x1b[?c"}}, answers{}, 0, true},
		{"silent after the first answer", []round{{first, "\x1b[?62;4c"}}, answers{level: 62, sixel: true}, 0, true},
		{"endless", []round{{first, strings.Repeat("x", 3000)}}, answers{}, 0, true},
		{"Ctrl-C", []round{{first, "\x03"}}, answers{}, unix.SIGINT, false},
		{"Ctrl-Z later", []round{{first, "\x1b[?62;c"}, {all, "\x1a"}}, answers{level: 62}, unix.SIGTSTP, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			terminal, line := openPTY(t)
			before := mode(t, line)
			go play(terminal, test.rounds)
			timeout := soon
			if test.wait {
				timeout = 200 * time.Millisecond
			}
			got, interrupt := askTerminal(context.Background(), line, timeout)
			if got != test.want || interrupt != test.interrupt {
				t.Errorf("%+v, %v, expected %+v, %v", got, interrupt, test.want, test.interrupt)
			}
			if after := mode(t, line); after != before {
				t.Errorf("the terminal's mode was %+v and is %+v", before, after)
			}
		})
	}
}

func TestAskTerminalCancelled(t *testing.T) {
	_, line := openPTY(t)
	before := mode(t, line)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	if got, _ := askTerminal(ctx, line, soon); got.answered() {
		t.Errorf("%+v", got)
	}
	if d := time.Since(start); d > soon/2 {
		t.Errorf("took %s", d)
	}
	if after := mode(t, line); after != before {
		t.Errorf("the terminal's mode was %+v and is %+v", before, after)
	}
}

// What was typed before is for the shell: nothing is asked, since the answer
// could not be told from it without taking it.
func TestAskTerminalTypedAhead(t *testing.T) {
	terminal, line := openPTY(t)
	terminal.WriteString("ls\n")
	if !readable(line, soon) {
		t.Fatal("nothing to read")
	}
	if got, _ := askTerminal(context.Background(), line, soon); got.answered() {
		t.Errorf("%+v", got)
	}
	buf := make([]byte, 100)
	n, err := line.Read(buf)
	if string(buf[:n]) != "ls\n" || err != nil {
		t.Errorf("the shell reads %q, %v", buf[:n], err)
	}
}

// TestOpen runs a process of its own, which has a terminal.
func TestOpen(t *testing.T) {
	if want := os.Getenv("TERMPIC_OPEN"); want != "" {
		got := Open(context.Background(), os.Stdout, Protocol(want))
		fmt.Printf("opened %s.\n", got.Protocol())
		return
	}
	sixels := []round{{askAttributes, "\x1b[?62;4c"}, {askSizes + askAttributes, xtermAnswer}}
	tests := []struct {
		name, env string
		want      Protocol
		pixels    bool
		rounds    []round
		opened    Protocol
	}{
		{"sixels", "TERM=xterm", Auto, true, sixels, Sixel},
		{"sixels of an unknown size", "TERM=xterm", Auto, false, sixels, None},
		{"sixels of an unknown size, asked for", "TERM=xterm", Sixel, false, sixels, Sixel},
		{"told by TERM", "TERM=xterm-kitty", Auto, true, nil, Kitty},
		{"asked for", "TERM=dumb", ITerm2, false, nil, ITerm2},
		{"not wanted", "TERM=xterm-kitty", None, true, nil, None},
		{"inherited from another terminal", "TERM=xterm KITTY_WINDOW_ID=1", Auto, true, []round{{askAttributes, "\x1b[?1;2c"}}, None},
		{"no answer", "TERM=xterm TERM_PROGRAM=iTerm.app", Auto, true, nil, ITerm2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			size := &pty.Winsize{Cols: 80, Rows: 24}
			if test.pixels {
				size.X, size.Y = 800, 480
			}
			cmd := exec.Command(os.Args[0], "-test.run", "^TestOpen$")
			cmd.Env = append(strings.Fields(test.env), "TERMPIC_OPEN="+string(test.want))
			terminal, err := pty.StartWithSize(cmd, size)
			if err != nil {
				t.Fatal(err)
			}
			defer terminal.Close()
			said := play(terminal, test.rounds)
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, said)
			}
			if want := fmt.Sprintf("opened %s.", test.opened); !strings.Contains(said, want) {
				t.Errorf("%q, expected %s", said, want)
			}
		})
	}
}

// To change the mode of a terminal that others have would disturb them, or stop
// this process.
func TestAskOthersTerminal(t *testing.T) {
	_, line := openPTY(t) // which is not this process's terminal
	start := time.Now()
	if got := ask(context.Background(), line, soon); got.answered() {
		t.Errorf("%+v", got)
	}
	if d := time.Since(start); d > soon/2 {
		t.Errorf("took %s", d)
	}
}
