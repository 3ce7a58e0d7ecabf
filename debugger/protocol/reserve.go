package protocol

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/plainjson"
)

// ErrTaken means that a live session has the name already.
var ErrTaken = errors.New("a session of this name is running (gomflux debug sessions lists all)")

// lockWait is how long a lock is tried that another process may hold for a moment, in
// order to find out whether the session lives or to remove its files.
const lockWait = 300 * time.Millisecond

// A Reservation is a session's name and its files, which belong to this process until
// it closes the reservation or ends.
type Reservation struct {
	Name    string
	folder  *Folder
	release func()

	mu     sync.Mutex
	closed bool
}

// Reserve takes a name for the session of this process, by default the first number that
// no session has, also none that has ended, and removes what a dead session of that name
// has left. The error is [ErrTaken] if a live session has the name.
func (f *Folder) Reserve(name string) (*Reservation, error) {
	if name != "" {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		r, err := f.reserve(name, lockWait)
		if errors.Is(err, filelock.ErrHeld) {
			err = ErrTaken
		}
		if err != nil {
			return nil, fmt.Errorf("session %s: %w", name, err)
		}
		return r, nil
	}
	for n := 1; ; n++ {
		name := strconv.Itoa(n)
		if f.has(name, statusSuffix) { // it lives, or its log can still be read
			continue
		}
		if r, err := f.reserve(name, 0); err == nil {
			return r, nil
		} else if !errors.Is(err, filelock.ErrHeld) {
			return nil, fmt.Errorf("session %s: %w", name, err)
		}
	}
}

func (f *Folder) reserve(name string, wait time.Duration) (*Reservation, error) {
	if err := f.checkLength(name); err != nil {
		return nil, err
	}
	release, err := f.lock(name, wait)
	if err != nil {
		return nil, err
	}
	if err := f.remove(name, socketSuffix, statusSuffix, tempSuffix); err != nil {
		release()
		return nil, err
	}
	return &Reservation{Name: name, folder: f, release: release}, nil
}

// lock takes the lock of a name. The error is filelock.ErrHeld if it is held all the
// time.
func (f *Folder) lock(name string, wait time.Duration) (release func(), err error) {
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		release, err = filelock.Try(f.file(name, lockSuffix))
		if !errors.Is(err, filelock.ErrHeld) || !time.Now().Before(end) {
			return release, err
		}
	}
}

// remove removes files of a session. Missing files are no error.
func (f *Folder) remove(name string, suffixes ...string) error {
	var errs []error
	for _, suffix := range suffixes {
		if err := os.Remove(f.file(name, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Listen opens the session's socket, for [Serve].
func (r *Reservation) Listen() (*net.UnixListener, error) {
	path := r.folder.file(r.Name, socketSuffix)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then, another session could have the name
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// WriteStatus writes NAME.json, from which others know the session when it does not
// answer.
func (r *Reservation) WriteStatus(s Status) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	s.Session = r.Name
	return r.folder.writeStatus(s)
}

// Close writes how the session has ended, removes its socket and its lock, and makes
// its name free.
func (r *Reservation) Close(final Status) error {
	err := r.WriteStatus(final)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	err = errors.Join(err, r.folder.remove(r.Name, socketSuffix, tempSuffix, lockSuffix))
	r.release()
	return err
}

// writeStatus replaces NAME.json. The caller has the lock. The temporary name depends
// on the session's name only, so that whoever finds a killed session can remove its
// temporary file without a risk for other sessions.
func (f *Folder) writeStatus(s Status) error {
	text, err := plainjson.Marshal(s, "")
	if err != nil {
		return err
	}
	temp, path := f.file(s.Session, tempSuffix), f.file(s.Session, statusSuffix)
	if err = os.WriteFile(temp, append(text, '\n'), 0o600); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return nil
}
