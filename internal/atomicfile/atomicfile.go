// Package atomicfile writes files that appear under their names whole or not at
// all. A file gets its name in one of two ways: [Replace] and [File.Replace]
// take the place of what has the name, [File.Create] fails where something has
// it.
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
	"sync"
)

// temporaries holds the names of all temporary files, for RemoveAll.
var temporaries = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

// A File has a temporary name, beside the one that it will get.
type File struct{ *os.File }

// New makes an empty file beside path. [File.Discard] must be called in the end.
func New(path string) (*File, error) {
	temporaries.Lock()
	defer temporaries.Unlock()
	for {
		// not os.CreateTemp, whose files only their owner can read
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".gomflux-%08x.tmp", rand.Uint32()))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case err == nil:
			temporaries.names[name] = true
			return &File{f}, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, err
		}
	}
}

// Fill writes all of the file and closes it. Its content is on the disk then:
// otherwise a crash of the machine could leave a name with nothing in it.
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

// Replace gives the file its name, whatever has it.
func (f *File) Replace(path string) error { return os.Rename(f.Name(), path) }

// Create gives the file a name that is free. Where something has it already,
// that is kept and the error is [fs.ErrExist]. The temporary name stays where
// the file system has links, so that further names can be tried.
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

// Withdraw undoes Create.
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

// Discard closes the file and removes its temporary name. A name that it got by
// Create or Replace stays.
func (f *File) Discard() {
	temporaries.Lock()
	defer temporaries.Unlock()
	f.Close()
	os.Remove(f.Name())
	delete(temporaries.names, f.Name())
}

// RemoveAll removes all temporary files, for those who end the process: New and
// Discard do not return after it.
func RemoveAll() {
	temporaries.Lock() // and never unlocked: none may be made from now on
	for name := range temporaries.names {
		os.Remove(name)
	}
}

// Replace writes a file, which takes the place of one that is there. Unlike
// [File.Fill] it does not wait for the disk.
func Replace(path string, write func(io.Writer) error) error {
	f, err := New(path)
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
