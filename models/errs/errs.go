// Package errs has the kinds of errors that the packages below models share. The
// root package shows them to programs under the same names.
package errs

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnsupported is wrapped by errors about models that are whole but that this
	// version cannot run: a pipeline class or a config that it does not know.
	ErrUnsupported = errors.New("not supported")
	// ErrNotFound is wrapped by errors about models that are not on this machine.
	ErrNotFound = errors.New("not on this machine")
	// ErrRequest is what errors about a request are (errors.Is): a size, a number or
	// a prompt that another request would not have.
	ErrRequest = errors.New("bad request")
)

// kindError is an error in its own words that errors.Is finds to be of a kind.
type kindError struct {
	error
	kind error
}

func (e kindError) Unwrap() error        { return e.error }
func (e kindError) Is(target error) bool { return target == e.kind }

// Request makes an error one about a request. Its text stays as it is.
func Request(err error) error { return kindError{err, ErrRequest} }

// Requestf formats an error about a request.
func Requestf(format string, args ...any) error { return Request(fmt.Errorf(format, args...)) }

// NotFound makes an error one about something that is not on this machine. Its
// text stays as it is.
func NotFound(err error) error { return kindError{err, ErrNotFound} }

// A List is several errors on one line.
type List []error

func (l List) Error() string {
	texts := make([]string, len(l))
	for i, err := range l {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (l List) Unwrap() []error { return l }

// Err is the list, or nil if it is empty.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return l
}
