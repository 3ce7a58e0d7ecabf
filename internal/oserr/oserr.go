// Package oserr has what packages that read and write files do with the errors.
package oserr

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Bare takes operation and path from an error of the file system, for messages
// that name the file themselves, and in full.
func Bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// NoEOF turns the end of what is read into an error that says it came too early.
func NoEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
