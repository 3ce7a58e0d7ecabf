// Package oserr has what packages that read and write files do with the errors.
package oserr

import (
	"errors"
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
