package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// Exit codes. They are part of the interface: see the EXIT STATUS sections.
const (
	ExitFailure     = 1   // an error while running
	ExitUsage       = 2   // invalid input: a flag, a size, the prompt, the output
	ExitModel       = 3   // the model is missing, damaged or not supported
	ExitLibrary     = 4   // the MLX libraries are missing or cannot be used
	ExitTimeout     = 124 // of gomflux debug: the run has not stopped in time
	ExitInterrupted = 130 // SIGINT, SIGTERM or SIGHUP
)

const reportURL = "https://github.com/gomflux/gomflux/issues"

// A CodedError is an error with its exit code.
type CodedError struct {
	Code int
	Err  error
}

func (e *CodedError) Error() string { return e.Err.Error() }

func (e *CodedError) Unwrap() error { return e.Err }

// Coded gives err an exit code unless it has one, or is an interruption.
func Coded(code int, err error) error {
	var c *CodedError
	if err == nil || errors.As(err, &c) || errors.Is(err, ErrInterrupted) {
		return err
	}
	return &CodedError{code, err}
}

func UsageErrorf(format string, args ...any) error {
	return Coded(ExitUsage, fmt.Errorf(format, args...))
}

func ExitCode(err error) int {
	var c *CodedError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	case errors.As(err, &c):
		return c.Code
	}
	return ExitFailure
}

// ErrReported is an error that was printed already.
var ErrReported = errors.New("reported")

// ErrInterrupted is the context's cause after a signal.
var ErrInterrupted = errors.New("interrupted")

// InternalError returns one line about a bug, for a report, instead of a page of
// goroutines.
func InternalError(p any) string {
	text, _, _ := strings.Cut(fmt.Sprint(p), "\n")
	return fmt.Sprintf("gomflux: internal error: %s (this is a bug: please report it with the command at %s)", text, reportURL)
}

// ExitStatus is the section that ends each command's help.
const ExitStatus = `
EXIT STATUS
  0    success
  1    an error while running
  2    invalid input: a flag, a size, the prompt, a file
  3    the model is missing, damaged or not supported
  4    the MLX libraries are missing or unusable
  130  interrupted`

// ComplainAll prints the lines of an error, except the last, which it returns.
func ComplainAll(out *ui.Output, err error) error {
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

// ErrDiffers ends a comparison that found a difference, after its report.
var ErrDiffers = errors.New("the tensors differ")

// Failed writes the JSON line of an error, if there is one, as the last line. main prints it for people.
func Failed(out *ui.Output, err error) {
	if ExitCode(err) == ExitInterrupted {
		err = ErrInterrupted // without where the run was interrupted
	}
	if err != nil {
		out.Event(ui.Message{MessageType: "error", Message: err.Error(), ExitCode: ExitCode(err)})
	}
}
