package parity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux/parity"
)

// referenceCommand is the reference's command with arguments, which a shell runs. It is interrupted when the
// context ends.
func referenceCommand(ctx context.Context, command string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", command + ` "$@"`, "sh"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// referenceError is the error of a command of the reference that did something.
func referenceError(command, what string, err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 127 {
		return fmt.Errorf("reference %s: command not found (give the command with --reference)", command)
	}
	return fmt.Errorf("reference %s %s: %w", command, what, err)
}

// A referenceStream is a process of the reference that sends its tensors to its standard output. It
// ends when its standard input is closed, and so also when this process ends in any way.
type referenceStream struct {
	command string
	cmd     *exec.Cmd
	cancel  context.CancelFunc
	tensors *os.File // the reading end of its standard output
	alive   *os.File // the writing end of its standard input
	said    *lastLine
}

// startReference starts the reference's command stream with arguments.
func startReference(ctx context.Context, command string, args []string, stderr io.Writer) (*referenceStream, error) {
	in, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	tensors, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), alive.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &referenceStream{command: command, cancel: cancel, tensors: tensors, alive: alive, said: &lastLine{w: stderr, ctx: ctx}}
	s.cmd = referenceCommand(ctx, command, append([]string{"stream"}, args...))
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = in, out, s.said
	interrupt := s.cmd.Cancel
	s.cmd.Cancel = func() error {
		alive.Close()
		tensors.Close() // so that a read ends although something else has the other end
		return interrupt()
	}
	err = s.cmd.Start()
	in.Close()
	out.Close()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("reference %s: %w", command, errors.Join(err, tensors.Close(), alive.Close()))
	}
	return s, nil
}

// end ends the process, and returns the error of a comparison, or the process's own if its early
// end is the cause.
func (s *referenceStream) end(failed error) error {
	ended := errors.Is(failed, parity.ErrStream) && errors.Is(failed, io.ErrUnexpectedEOF)
	if ended || failed == nil {
		time.AfterFunc(s.cmd.WaitDelay, s.cancel)
	} else {
		s.cancel()
	}
	s.tensors.Close()
	s.alive.Close()
	err := s.cmd.Wait()
	s.cancel()
	last := s.said.end(ended)
	if !ended {
		return failed
	}
	if err != nil && last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return referenceError(s.command, "stream", cmp.Or(err, failed))
}

// A lastLine passes lines on, each when the next one comes, until its context has ended.
type lastLine struct {
	w   io.Writer
	ctx context.Context

	mu   sync.Mutex
	held []byte // the last line, as far as it has come
}

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	const most = 1 << 16
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return len(p), nil
	}
	l.held = append(l.held, p...)
	if i := bytes.LastIndexByte(bytes.TrimRight(l.held, "\n"), '\n'); i >= 0 || len(l.held) > most {
		if i < 0 {
			i = len(l.held) - 1
		}
		if _, err := l.w.Write(l.held[:i+1]); err != nil {
			return 0, err
		}
		l.held = bytes.Clone(l.held[i+1:])
	}
	return len(p), nil
}

// end returns the last line, or passes it on if it is not wanted.
func (l *lastLine) end(wanted bool) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := strings.TrimSpace(string(l.held))
	l.held = nil
	if last != "" && !wanted {
		fmt.Fprintln(l.w, last)
	}
	return last
}
