package termpic

import (
	"cmp"
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ask queries the terminal's capabilities. It returns no answers if out is not the
// terminal of this process or the process is in the background, where a change of
// the terminal's mode would stop it.
func ask(ctx context.Context, out *os.File, timeout time.Duration) answers {
	group, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return answers{}
	}
	// out may be open for writing only
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return answers{}
	}
	defer tty.Close()
	a, interrupt := askTerminal(ctx, tty, timeout)
	if interrupt != 0 {
		unix.Kill(0, interrupt) // the whole process group, as the terminal would have done
	}
	return a
}

// askTerminal queries the terminal in raw mode. If the user presses a key that
// normally sends a signal, it stops and returns the signal.
func askTerminal(ctx context.Context, tty *os.File, timeout time.Duration) (a answers, interrupt unix.Signal) {
	before, err := term.MakeRaw(int(tty.Fd()))
	if err != nil {
		return answers{}, 0
	}
	defer term.Restore(int(tty.Fd()), before)
	if readable(tty, 0) {
		return answers{}, 0 // leave typed input for the shell
	}
	// Terminals may print unknown sequences. All know DA1, and those that claim to
	// be a VT200 or later know how the string of kitty's query ends.
	a, interrupt = converse(ctx, tty, askAttributes, timeout)
	if a.level > 60 && interrupt == 0 {
		var more answers
		more, interrupt = converse(ctx, tty, askKitty+askName+askColors+askSizes+askAttributes, timeout)
		if more.answered() {
			a = more
		}
	}
	return a, interrupt
}

// interrupts are the keys for which a terminal that is not in raw mode sends a signal.
var interrupts = map[byte]unix.Signal{0x03: unix.SIGINT, 0x1a: unix.SIGTSTP, 0x1c: unix.SIGQUIT}

// converse writes questions and reads until DA1 is answered.
func converse(ctx context.Context, tty *os.File, questions string, timeout time.Duration) (a answers, interrupt unix.Signal) {
	deadline := time.Now().Add(timeout)
	if _, err := tty.WriteString(questions); err != nil {
		return answers{}, 0
	}
	var data []byte
	buf := make([]byte, 1024)
	for ctx.Err() == nil && len(data) < 1<<16 && time.Now().Before(deadline) {
		if !readable(tty, min(time.Until(deadline), 50*time.Millisecond)) {
			continue
		}
		n, err := tty.Read(buf)
		if err != nil {
			break // hung up
		}
		data = append(data, buf[:n]...)
		for _, key := range buf[:n] {
			interrupt = cmp.Or(interrupts[key], interrupt)
		}
		a = answers{}
		if a.parse(data) || interrupt != 0 {
			return a, interrupt
		}
	}
	return answers{}, 0
}

// readable waits until there is input. It does not use poll, which does not work
// with terminals on macOS.
func readable(tty *os.File, wait time.Duration) bool {
	fd := int(tty.Fd())
	if fd >= unix.FD_SETSIZE {
		return false // it has no place in a set
	}
	var set unix.FdSet
	set.Set(fd)
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	n, err := unix.Select(fd+1, &set, nil, nil, &tv)
	return err == nil && n > 0
}

func sizeOf(f *os.File) termSize {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return termSize{}
	}
	return termSize{cols: int(ws.Col), rows: int(ws.Row), width: int(ws.Xpixel), height: int(ws.Ypixel)}
}
