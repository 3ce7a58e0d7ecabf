package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// An overlay is a model folder in diffusers' layout that combines files from several
// places.
type overlay struct {
	name   string                 // the model's name, for messages
	lower  fs.FS                  // everything that is not in files; may be nil
	hidden map[string]bool        // top-level folders of lower that are not visible
	files  map[string]overlayFile // the overlay's own files by path
}

// An overlayFile is a file of another folder, or a text.
type overlayFile struct {
	fsys   fs.FS  // the file's folder, nil for a text
	path   string // in fsys
	text   []byte
	origin string // where the text comes from, for messages
}

// FullName returns the real name of a file; see checkpoint.FullName.
func (o *overlay) FullName(name string) string {
	if f, ok := o.files[name]; ok && f.fsys != nil {
		return checkpoint.FullName(f.fsys, f.path)
	}
	if o.fromLower(name) && name != "" && name != "." {
		if _, err := fs.Stat(o.lower, name); err == nil {
			return checkpoint.FullName(o.lower, name)
		}
	}
	switch f := o.files[name]; {
	case name == "" || name == ".":
		return o.name
	case f.origin != "":
		return fmt.Sprintf("%s (%s, %s)", o.name, name, f.origin)
	}
	return fmt.Sprintf("%s (%s)", o.name, name)
}

// Generated reports whether a file is a text, and not a file of a folder; see checkpoint.Checkpoint.
func (o *overlay) Generated(name string) bool {
	f, own := o.files[name]
	return own && f.fsys == nil
}

// fromLower reports whether a path refers to the lower file system.
func (o *overlay) fromLower(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return o.lower != nil && !o.hidden[top] && fs.ValidPath(name)
}

// isDir reports whether a path is a folder of the overlay's own files.
func (o *overlay) isDir(name string) bool {
	for file := range o.files {
		if name == "." || strings.HasPrefix(file, name+"/") {
			return true
		}
	}
	return false
}

// Open implements fs.FS. Files of other folders are returned as they are, because
// package checkpoint passes the descriptors of operating system files to MLX.
func (o *overlay) Open(name string) (fs.File, error) {
	f, own := o.files[name]
	switch {
	case !fs.ValidPath(name):
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	case own && f.fsys == nil:
		return &textFile{textInfo{path.Base(name), int64(len(f.text))}, bytes.NewReader(f.text)}, nil
	case own:
		return f.fsys.Open(f.path)
	case name == "." || o.isDir(name):
		entries, err := o.ReadDir(name)
		return &overlayDir{info: dirInfo(path.Base(name)), entries: entries}, err
	case o.fromLower(name):
		return o.lower.Open(name)
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// Stat implements fs.StatFS.
func (o *overlay) Stat(name string) (fs.FileInfo, error) {
	f, own := o.files[name]
	switch {
	case !fs.ValidPath(name):
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrInvalid}
	case own && f.fsys == nil:
		return textInfo{path.Base(name), int64(len(f.text))}, nil
	case own:
		return fs.Stat(f.fsys, f.path)
	case name == "." || o.isDir(name):
		return dirInfo(path.Base(name)), nil
	case o.fromLower(name):
		return fs.Stat(o.lower, name)
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// Lstat implements fs.ReadLinkFS. The overlay's own files are never reported as links.
func (o *overlay) Lstat(name string) (fs.FileInfo, error) {
	if _, own := o.files[name]; !own && !o.isDir(name) && o.fromLower(name) {
		return fs.Lstat(o.lower, name)
	}
	return o.Stat(name)
}

// ReadLink implements fs.ReadLinkFS.
func (o *overlay) ReadLink(name string) (string, error) {
	f, own := o.files[name]
	switch {
	case own && f.fsys != nil:
		return fs.ReadLink(f.fsys, f.path)
	case !own && o.fromLower(name):
		return fs.ReadLink(o.lower, name)
	}
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
}

// ReadDir implements fs.ReadDirFS.
func (o *overlay) ReadDir(name string) ([]fs.DirEntry, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	entries := map[string]fs.DirEntry{}
	var err error = &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	if o.fromLower(name) {
		var list []fs.DirEntry
		list, err = fs.ReadDir(o.lower, name)
		for _, e := range list {
			if name != "." || !o.hidden[e.Name()] {
				entries[e.Name()] = e
			}
		}
	}
	for file := range o.files {
		rest := file
		if name != "." {
			var ok bool
			if rest, ok = strings.CutPrefix(file, name+"/"); !ok {
				continue
			}
		}
		child, _, below := strings.Cut(rest, "/")
		if below {
			entries[child] = fs.FileInfoToDirEntry(dirInfo(child))
		} else if info, statErr := o.Stat(file); statErr == nil {
			entries[child] = namedEntry{fs.FileInfoToDirEntry(info), child}
		}
	}
	if len(entries) == 0 && name != "." {
		return nil, err
	}
	var list []fs.DirEntry
	for _, child := range slices.Sorted(maps.Keys(entries)) {
		list = append(list, entries[child])
	}
	return list, nil
}

// namedEntry is a directory entry under another name than that of its file.
type namedEntry struct {
	fs.DirEntry
	name string
}

func (e namedEntry) Name() string { return e.name }

// textInfo implements fs.FileInfo for a text.
type textInfo struct {
	name string
	size int64
}

func (i textInfo) Name() string     { return i.name }
func (i textInfo) Size() int64      { return i.size }
func (textInfo) Mode() fs.FileMode  { return 0o444 }
func (textInfo) ModTime() time.Time { return time.Time{} }
func (textInfo) IsDir() bool        { return false }
func (textInfo) Sys() any           { return nil }

// dirInfo implements fs.FileInfo for the folder of that name.
type dirInfo string

func (i dirInfo) Name() string     { return string(i) }
func (dirInfo) Size() int64        { return 0 }
func (dirInfo) Mode() fs.FileMode  { return fs.ModeDir | 0o555 }
func (dirInfo) ModTime() time.Time { return time.Time{} }
func (dirInfo) IsDir() bool        { return true }
func (dirInfo) Sys() any           { return nil }

// textFile is an open text.
type textFile struct {
	info textInfo
	*bytes.Reader
}

func (f *textFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *textFile) Close() error               { return nil }

// overlayDir is an open folder.
type overlayDir struct {
	info    dirInfo
	entries []fs.DirEntry
}

func (d *overlayDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *overlayDir) Close() error               { return nil }
func (d *overlayDir) Read([]byte) (int, error)   { return 0, errors.New("is a folder") }

func (d *overlayDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.entries)
	} else if len(d.entries) == 0 {
		return nil, io.EOF
	}
	list := d.entries[:min(n, len(d.entries))]
	d.entries = d.entries[len(list):]
	return list, nil
}
