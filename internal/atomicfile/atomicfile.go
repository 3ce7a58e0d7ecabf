// Package atomicfile writes files that appear under their names complete or not at
// all. [Replace], [ReplacePrivate] and [File.Replace] replace an existing file;
// [File.Create] fails if the file exists.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync"
)

// temporaries holds the names of all temporary files, for RemoveAll.
var temporaries = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

var temporaryName = regexp.MustCompile(`^\.gomflux-[0-9a-f]{8}\.tmp$`)

// IsTemporary reports whether a file's name, without its folder, is that of a temporary
// file. A process that was killed leaves such files.
func IsTemporary(name string) bool { return temporaryName.MatchString(name) }

// A File is a file with a temporary name in the folder of its final name.
type File struct{ *os.File }

// New creates an empty file in the folder of path. The caller must call
// [File.Discard] at the end.
func New(path string) (*File, error) { return create(path, 0o666) }

func create(path string, perm fs.FileMode) (*File, error) {
	temporaries.Lock()
	defer temporaries.Unlock()
	for {
		// not os.CreateTemp, whose files only their owner can read
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".gomflux-%08x.tmp", rand.Uint32()))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		switch {
		case err == nil:
			temporaries.names[name] = true
			return &File{f}, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, err
		}
	}
}

// Fill writes the file, syncs it to disk and closes it. Without the sync a crash of
// the machine could leave an empty file under the final name.
func (f *File) Fill(write func(io.Writer) error) error {
	err := f.write(write)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	return err
}

func (f *File) write(write func(io.Writer) error) error {
	w := bufio.NewWriterSize(f, 1<<16)
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}

// Replace renames the file to path and replaces an existing file.
func (f *File) Replace(path string) error { return os.Rename(f.Name(), path) }

// Create gives the file the name path. If path exists, it stays, and the error is
// [fs.ErrExist]. On file systems with hard links the temporary name remains, so
// that other names can be tried.
func (f *File) Create(path string) error {
	err := os.Link(f.Name(), path) // which, unlike a rename, fails where another process was faster
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if exists(path) { // a file system without links
		return fs.ErrExist
	}
	return os.Rename(f.Name(), path)
}

// Withdraw reverses Create.
func (f *File) Withdraw(path string) error {
	if exists(f.Name()) {
		return os.Remove(path)
	}
	return os.Rename(path, f.Name())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Discard closes the file and removes its temporary name. A name from Create or
// Replace remains.
func (f *File) Discard() {
	temporaries.Lock()
	defer temporaries.Unlock()
	f.Close()
	os.Remove(f.Name())
	delete(temporaries.names, f.Name())
}

// RemoveAll removes all temporary files before the process exits. New and Discard
// block forever after it.
func RemoveAll() {
	temporaries.Lock() // and never unlocked: none may be made from now on
	for name := range temporaries.names {
		os.Remove(name)
	}
}

// Replace writes a file and replaces an existing one. Unlike [File.Fill] it does
// not sync.
func Replace(path string, write func(io.Writer) error) error { return replace(path, 0o666, write) }

// ReplacePrivate is [Replace] for a file that only its owner can read.
func ReplacePrivate(path string, write func(io.Writer) error) error {
	return replace(path, 0o600, write)
}

func replace(path string, perm fs.FileMode, write func(io.Writer) error) error {
	f, err := create(path, perm)
	if err != nil {
		return err
	}
	defer f.Discard()
	err = f.write(write)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = f.Replace(path)
	}
	return err
}
