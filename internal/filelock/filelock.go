// Package filelock locks files and folders against other processes with flock. A
// lock is held until it is released or the process exits.
package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrHeld means that another process, or another part of this one, holds the lock.
var ErrHeld = errors.New("locked")

// An Error means that a file could be opened but not locked for a reason other
// than ErrHeld. Some file systems do not support locks.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Try takes the lock of a file. It creates the file if necessary. The error is
// ErrHeld, an *[Error], or that of opening the file.
func Try(path string) (release func(), err error) {
	return try(path, os.O_RDWR|os.O_CREATE)
}

// TryFolder is [Try] for an existing folder.
func TryFolder(path string) (release func(), err error) {
	return try(path, os.O_RDONLY)
}

func try(path string, flag int) (release func(), err error) {
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	err = flock(f, syscall.LOCK_EX)
	if err == nil && !isAt(f, path) {
		err = ErrHeld // by who removed it, before it was locked
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// flock does not wait.
func flock(f *os.File, how int) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err {
		case nil:
			return nil
		case syscall.EINTR:
		case syscall.EWOULDBLOCK, syscall.EACCES:
			return ErrHeld
		default:
			return &Error{err}
		}
	}
}

// isAt reports whether path still is the open file.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}

// Wait calls [Try] until it gets the lock. It creates the file's folder, again if
// another process removes it. If it has to wait, it calls waiting once. The error
// can also be the context's cause.
func Wait(ctx context.Context, path string, waiting func()) (release func(), err error) {
	for told := false; ; told = true {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return nil, err
		}
		release, err = Try(path)
		if !errors.Is(err, ErrHeld) && !errors.Is(err, os.ErrNotExist) {
			return release, err
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Held reports whether the lock of a file is held.
func Held(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return flock(f, syscall.LOCK_SH) != nil
}
