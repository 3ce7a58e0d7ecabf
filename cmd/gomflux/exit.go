package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes. They are part of the interface: see the EXIT STATUS sections.
const (
	exitFailure     = 1   // it went wrong while running
	exitUsage       = 2   // flags, sizes, prompt, output: what the user gave
	exitModel       = 3   // the model is missing, damaged or not supported
	exitLibrary     = 4   // the MLX libraries are missing or cannot be used
	exitInterrupted = 130 // SIGINT, SIGTERM or SIGHUP
)

const reportURL = "https://github.com/gomflux/gomflux/issues"

// A codedError is an error with the exit code it leads to.
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

// errInterrupted is the cause of the context's end after a signal.
var errInterrupted = errors.New("interrupted")

// complain writes an error to standard error.
func complain(stderr io.Writer, err error) {
	fmt.Fprintf(stderr, "gomflux: %s\n", escaped(err.Error()))
}

// internalError is one line about a bug that can be reported, not a page of
// goroutines.
func internalError(p any) string {
	text, _, _ := strings.Cut(fmt.Sprint(p), "\n")
	return fmt.Sprintf("gomflux: internal error: %s (this is a bug: please report it with the command at %s)", text, reportURL)
}

// exitStatus is the section that ends each command's help.
const exitStatus = `
EXIT STATUS
  0    it worked
  1    it failed while running
  2    something given was wrong: a flag, a size, the prompt, the output
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or cannot be used
  130  it was interrupted`

// noArgs refuses arguments that are not flags.
func noArgs(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageErrorf("unexpected argument %q%s", args[0], hint)
		}
		return nil
	}
}
