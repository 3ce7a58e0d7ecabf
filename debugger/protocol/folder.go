package protocol

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
)

// The files of a session NAME in the folder of sockets.
const (
	lockSuffix   = ".lock" // locked with flock as long as the session's process lives
	socketSuffix = ".sock"
	statusSuffix = ".json" // the Status as last known, and how the session ended
	tempSuffix   = ".tmp"  // becomes NAME.json. Only the process with the lock writes it
)

var suffixes = []string{lockSuffix, socketSuffix, statusSuffix, tempSuffix}

// maxName is the length of a session's name, in bytes.
const maxName = 32

// maxSocketPath is the length of a socket's path that the system allows, in bytes.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// A Folder is the one with the sockets of all sessions of a user.
type Folder struct{ Path string }

// OpenFolder returns the user's folder of sockets, which it creates if necessary:
// $XDG_RUNTIME_DIR/gomflux-debug, or gomflux-debug-UID in the temporary folder. A
// folder that others could have made or can read is an error.
func OpenFolder() (*Folder, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("gomflux-debug-%d", os.Geteuid()))
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			path = filepath.Join(dir, "gomflux-debug")
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f := &Folder{path}
	if err := f.checkLength("1"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("folder of sockets %s: %w", path, oserr.Bare(err))
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("folder of sockets %s: %w (remove it, or set XDG_RUNTIME_DIR to another folder)", path, err)
	}
	return f, nil
}

// check checks that only the user can have made the folder and can read it.
func (f *Folder) check() error {
	info, err := os.Lstat(f.Path)
	if err != nil {
		return oserr.Bare(err)
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return errors.New("expected a folder, found a symbolic link")
	case !mode.IsDir():
		return errors.New("expected a folder, found a file")
	case mode.Perm() != 0o700:
		return fmt.Errorf("mode %04o, expected 0700", mode.Perm())
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, expected %d", stat.Uid, os.Geteuid())
	}
	return nil
}

// checkLength checks that the system allows the path of a session's socket.
func (f *Folder) checkLength(name string) error {
	if path := f.file(name, socketSuffix); len(path) > maxSocketPath {
		return fmt.Errorf("socket %s: its path has %d bytes, but the system allows %d (set XDG_RUNTIME_DIR to a folder with a "+
			"shorter path)", path, len(path), maxSocketPath)
	}
	return nil
}

func (f *Folder) file(name, suffix string) string { return filepath.Join(f.Path, name+suffix) }

// CheckName checks the name of a session.
func CheckName(name string) error {
	problem := ""
	switch {
	case name == "":
		problem = "it is empty"
	case len(name) > maxName:
		problem = fmt.Sprintf("it has %d characters, expected at most %d", len(name), maxName)
	case name[0] == '.':
		problem = `it begins with "."`
	}
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			problem = "expected letters, digits, '-', '_' and '.'"
		}
	}
	if problem != "" {
		return fmt.Errorf("session name %s: %s", quote.Text(name), problem)
	}
	return nil
}
