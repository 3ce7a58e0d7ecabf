package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// Exit codes. They are part of the interface: see the EXIT STATUS sections.
const (
	exitFailure     = 1   // an error while running
	exitUsage       = 2   // invalid input: a flag, a size, the prompt, the output
	exitModel       = 3   // the model is missing, damaged or not supported
	exitLibrary     = 4   // the MLX libraries are missing or cannot be used
	exitTimeout     = 124 // of gomflux debug: the run has not stopped in time
	exitInterrupted = 130 // SIGINT, SIGTERM or SIGHUP
)

const reportURL = "https://github.com/gomflux/gomflux/issues"

// A codedError is an error with its exit code.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

// coded gives err an exit code unless it has one, or is an interruption.
func coded(code int, err error) error {
	var c *codedError
	if err == nil || errors.As(err, &c) || errors.Is(err, errInterrupted) {
		return err
	}
	return &codedError{code, err}
}

func usageErrorf(format string, args ...any) error {
	return coded(exitUsage, fmt.Errorf(format, args...))
}

func exitCode(err error) int {
	var c *codedError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &c):
		return c.code
	}
	return exitFailure
}

// errReported is an error that was printed already.
var errReported = errors.New("reported")

// errInterrupted is the context's cause after a signal.
var errInterrupted = errors.New("interrupted")

// internalError returns one line about a bug, for a report, instead of a page of
// goroutines.
func internalError(p any) string {
	text, _, _ := strings.Cut(fmt.Sprint(p), "\n")
	return fmt.Sprintf("gomflux: internal error: %s (this is a bug: please report it with the command at %s)", text, reportURL)
}

// exitStatus is the section that ends each command's help.
const exitStatus = `
EXIT STATUS
  0    success
  1    an error while running
  2    invalid input: a flag, a size, the prompt, a file
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or unusable
  130  interrupted`

// complainAll prints the lines of an error, except the last, which it returns.
func complainAll(out *ui.Output, err error) error {
	lines := linesOf(err)
	if len(lines) == 0 {
		return nil
	}
	for _, err := range lines[:len(lines)-1] {
		ui.Complain(out.Stderr, err)
	}
	return lines[len(lines)-1]
}

// linesOf returns the errors that an error joins.
func linesOf(err error) (lines []error) {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		for _, err := range e.Unwrap() {
			lines = append(lines, linesOf(err)...)
		}
		return lines
	}
	return []error{err}
}

// errDiffers ends a comparison that found a difference, after its report.
var errDiffers = errors.New("the tensors differ")

// failed writes the JSON line of an error, if there is one. main prints it for
// people.
func failed(out *ui.Output, err error) {
	if exitCode(err) == exitInterrupted {
		err = errInterrupted // without where the run was interrupted
	}
	if err != nil {
		out.Failed(err.Error(), exitCode(err))
	}
}
