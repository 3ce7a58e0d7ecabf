// Package errs has the kinds of errors that package models and those below it share. The root
// package exports them under the same names.
package errs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

var (
	// ErrUnsupported is wrapped by errors about complete models that this version cannot run,
	// because of their pipeline class or a config.
	ErrUnsupported = checkpoint.ErrUnsupported
	// ErrNotFound is wrapped by errors about models that are not on this machine.
	ErrNotFound = errors.New("not on this machine")
	// ErrRequest is matched by errors about a request, such as an invalid size or prompt.
	ErrRequest = errors.New("bad request")
)

// A kindError is an error that errors.Is matches with a kind, which its text does not mention.
type kindError struct {
	error
	kind error
}

func (e kindError) Unwrap() error        { return e.error }
func (e kindError) Is(target error) bool { return target == e.kind }

// Request marks an error as ErrRequest. Its text stays as it is.
func Request(err error) error { return kindError{err, ErrRequest} }

// Requestf formats an error and marks it as ErrRequest.
func Requestf(format string, args ...any) error { return Request(fmt.Errorf(format, args...)) }

// Unsupported marks an error as ErrUnsupported. Its text stays as it is.
func Unsupported(err error) error { return kindError{err, ErrUnsupported} }

// NotFound marks an error as ErrNotFound. Its text stays as it is.
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

// Err returns the list, or nil if it is empty.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return l
}
