package termpic

import (
	"bytes"
	"context"
	"errors"
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
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return answers{}
	}
	defer unix.Close(fd)
	a, interrupt := askTerminal(ctx, fd, timeout)
	if interrupt != 0 {
		unix.Kill(0, interrupt) // the whole process group, as the terminal would have done
	}
	return a
}

// askTerminal queries the terminal in raw mode. If the user presses a key that
// normally sends a signal, it stops and returns the signal.
func askTerminal(ctx context.Context, fd int, timeout time.Duration) (a answers, interrupt unix.Signal) {
	before, err := term.MakeRaw(fd)
	if err != nil {
		return answers{}, 0
	}
	defer term.Restore(fd, before)
	if readable(fd, 0) {
		return answers{}, 0 // leave typed input for the shell
	}
	// Terminals may print unknown sequences. All know DA1, and those that claim to
	// be a VT200 or later know how the string of kitty's query ends.
	a, interrupt = converse(ctx, fd, askAttributes, timeout)
	if a.level > 60 && interrupt == 0 {
		var more answers
		more, interrupt = converse(ctx, fd, askKitty+askName+askColors+askSizes+askAttributes, timeout)
		if more.answered() {
			a = more
		}
	}
	return a, interrupt
}

// converse writes questions and reads until DA1 is answered.
func converse(ctx context.Context, fd int, questions string, timeout time.Duration) (a answers, interrupt unix.Signal) {
	deadline := time.Now().Add(timeout)
	for b := []byte(questions); len(b) > 0; {
		n, err := unix.Write(fd, b)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return answers{}, 0
		}
		b = b[max(n, 0):]
	}
	var data []byte
	buf := make([]byte, 1024)
	for ctx.Err() == nil && len(data) < 1<<16 {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		if !readable(fd, min(left, 50*time.Millisecond)) {
			continue
		}
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			break // hung up
		}
		data = append(data, buf[:n]...)
		for key, signal := range map[byte]unix.Signal{0x03: unix.SIGINT, 0x1a: unix.SIGTSTP, 0x1c: unix.SIGQUIT} {
			if bytes.IndexByte(buf[:n], key) >= 0 {
				interrupt = signal
			}
		}
		a = answers{}
		if a.parse(data) || interrupt != 0 {
			return a, interrupt
		}
	}
	return answers{}, interrupt
}

// readable waits until there is input. It does not use poll, which does not work
// with terminals on macOS.
func readable(fd int, wait time.Duration) bool {
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
