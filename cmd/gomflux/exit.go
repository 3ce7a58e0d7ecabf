package main

import (
	"errors"
	"fmt"
	"strings"
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
