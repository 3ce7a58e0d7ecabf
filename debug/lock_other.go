//go:build !unix

package debug

import "errors"

var errLocked = errors.New("locked")

// There are no such locks here: concurrent runs need folders of their own.
func lock(string) (unlock func(), err error) { return func() {}, nil }

func locked(string) bool { return false }
