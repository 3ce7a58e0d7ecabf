// Package oserr simplifies errors of file operations.
package oserr

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Bare removes operation and path from an error of the file system, for messages
// that contain the full name of the file already.
func Bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// NoEOF converts io.EOF to io.ErrUnexpectedEOF.
func NoEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
